// PolicyChooser: who picks the routing policy of each step, when it is not one policy for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "layers/step.h"
#include "routing/router.h"

namespace carpool {

/// What a chooser says of itself, for statistics and metrics.
struct ChooserReport {
  std::string name;          // as it was asked for: "auto", "auto:max_kl=0.005"
  uint64_t changes = 0;      // of policy
  bool fit_is_live = false;  // the latency model is fitted to this engine's own steps
  double us_per_assignment = 0.0, us_per_expert = 0.0, us_fixed = 0.0;  // of one MoE layer
};

class PolicyChooser {
 public:
  virtual ~PolicyChooser() = default;
  /// The policy of the coming step of `decode_rows` decode rows. `decode`: the engine's sums over
  /// its pure-decode steps so far. Never null; the same pointer as last time means no change.
  /// Called on the thread that steps the engine.
  virtual std::shared_ptr<const PolicySpec> Choose(size_t decode_rows, const StepStats& decode) = 0;
  virtual ChooserReport Report() const = 0;
};

}  // namespace carpool
