// Benchmark of routing alone: logits to ids, weights and the routing plan, one thread, no model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "routing/router.h"

namespace carpool {

struct BenchRoutingOptions {
  std::string shape = "glm-5";  // a preset of routing/routing_config.h
  std::vector<size_t> batches;
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  size_t repeats = 0;  // timed calls per row; 0: enough for a stable median (about 0.2 s)
  uint64_t seed = 0;
};

struct BenchRoutingRow {
  size_t batch = 0;
  std::string routing;
  double distinct_experts = 0;
  double us_median = 0;
  double us_p10 = 0;
  double us_p90 = 0;
  double tokens_per_s = 0;
};

/// Policies are interleaved call by call, so that a slow moment of the machine hits all of them.
/// Logits are seeded normal numbers, with a bias of a tenth of their spread where the model has
/// one.
Result<std::vector<BenchRoutingRow>> BenchRouting(const BenchRoutingOptions& options);

}  // namespace carpool
