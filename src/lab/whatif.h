// What-if: the T, bytes and time every policy would have had on recorded routing, and the routing
// mass rows would have lost.
//
// The trace is routed again through the real router. Experts a row did not choose have no recorded
// score and count as zero: T is exact for policies that decide by the recorded ranks (topk, oea);
// what a row could ride on beyond its own choice adds no mass here, so the mass kept is a lower
// bound.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lab/routing_trace.h"
#include "routing/router.h"

namespace carpool {

struct WhatIfOptions {
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  size_t num_experts = 0;       // 0: as the trace shows
  double bytes_per_expert = 0;  // 0: unknown
  double bandwidth_gbs = 0;     // 0: unknown
};

struct LostRequest {
  size_t request = 0;
  double mass_kept = 1.0;  // mean over its steps and layers
};

struct WhatIfRow {
  std::string routing;
  double distinct_experts = 0.0;   // mean over steps and layers
  double experts_per_row = 0.0;    // of the row's own choice
  double bytes = 0.0;              // of routed experts per step, all layers
  double us = 0.0;                 // reading them
  double saved = 0.0;              // share of the first policy's T
  double mass_kept = 1.0;          // share of the recorded choice's mass, mean over rows
  double mass_kept_p1 = 1.0;       // 1st percentile over (row, layer)
  std::vector<LostRequest> worst;  // up to five requests, least mass kept first
};

struct WhatIfReport {
  size_t steps = 0;  // distinct steps
  double rows_per_step = 0.0;
  bool has_scores = false;  // without: ranks weigh 1/1, 1/2, 1/3, …
  std::vector<WhatIfRow> rows;
};

/// Errors: policies that the trace's k and experts cannot have; more experts in the trace than
/// num_experts.
Result<WhatIfReport> WhatIf(const RoutingTrace& trace, const WhatIfOptions& options);

}  // namespace carpool
