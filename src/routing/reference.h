// The readable twin of routing: plain loops, doubles, sorts and sets. Tests compare everything fast
// with it.
//
// Nothing here is used at run time. Selection works on the scores it is given, so that it can be
// exact; scoring is done anew in double precision.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "routing/gate.h"
#include "routing/router.h"

namespace carpool {

struct ReferenceRow {
  std::vector<double> scores;   // [N] a
  std::vector<double> choices;  // [N] c
  std::vector<bool> kept;       // [N] false: the expert's group was dropped
  std::vector<int32_t> ranks;   // eligible experts, best first
};

/// Carpool's own arithmetic (total order, -inf mask) for one row, in double precision.
ReferenceRow ReferenceScore(const GateSpec& gate, std::span<const float> logits,
                            std::span<const float> bias);

/// Weights of `ids` in that order.
std::vector<double> ReferenceWeigh(const GateSpec& gate, const ReferenceRow& row,
                                   const std::vector<int32_t>& ids);

/// The knobs of all policies together; each uses its own.
struct ReferenceKnobs {
  size_t k = 0;                       // topk
  size_t k0 = 0, kmax = 0, maxp = 0;  // oea; kmax, maxp 0 = defaults
  double p = 1;
  double delta = 0;  // near
  size_t extra = 0;
  size_t kmin = 0;  // ser
  double t = 0;
  size_t budget = 0, warm = 1;  // lynx, cap, xshare
  bool ride = true;
};

/// The sets of every row under `policy`, best first; empty for padding. rows, infos: as in Route.
std::vector<std::vector<int32_t>> ReferenceSelect(const std::string& policy,
                                                  const ReferenceKnobs& knobs, const GateSpec& gate,
                                                  const std::vector<ReferenceRow>& rows,
                                                  std::span<const RowInfo> infos);

}  // namespace carpool
