// End-to-end decode speed of a model that does not fit: a stack of its layers with random weights,
// every context length, extrapolated to the whole.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/synthetic_model.h"
#include "routing/router.h"

namespace carpool {

struct BenchStackOptions {
  SyntheticOptions model;  // moe_layers 0: as many as fit
  std::vector<size_t> batches = {1, 16};
  std::vector<size_t> contexts = {256, 32768};
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  size_t steps = 16;  // timed per (batch, context, policy)
  Activations activations = Activations::kQ8;
  size_t threads = 1;
  size_t membw_bytes = size_t{1} << 30;
  std::function<void(size_t done, size_t total)> progress;
};

/// Microseconds of one step, means over the steps.
struct StackTimes {
  double projections = 0.0;  // of attention
  double indexer = 0.0;      // scores and choice of positions
  double keys = 0.0;         // softmax over the keys
  double router = 0.0, experts = 0.0, dense = 0.0, head = 0.0, other = 0.0;
  double Total() const {
    return projections + indexer + keys + router + experts + dense + head + other;
  }
};

struct BenchStackRow {
  size_t batch = 0, context = 0;
  std::string routing;
  double distinct_experts = 0.0;
  double us_median = 0.0, us_p10 = 0.0, us_p90 = 0.0;  // of one step of the stack
  StackTimes stack;
  double moe_us_per_layer = 0.0;  // router and experts, median over steps
  double gbytes_per_s = 0.0;      // routed experts' bytes over the time spent in experts
  double fraction_of_membw = 0.0;
  double model_us = 0.0;      // the whole model's step: every part's time, its median over steps,
                              // times how often the real model has it
  double tokens_per_s = 0.0;  // batch / model_us
  double model_gain = 1.0;    // model_us of the first policy / this one's, same batch and context
  double moe_gain = 1.0;      // the same of moe_us_per_layer
};

struct BenchStackReport {
  SyntheticShape shape;
  size_t moe_layers = 0;  // resident
  double membw_gbytes_per_s = 0.0;
  std::vector<BenchStackRow> rows;
};

/// The cache is filled with noise up to the context; every step of every policy writes the same
/// position, and policies take turns. Errors: what does not fit into memory, with numbers.
Result<BenchStackReport> BenchStack(const BenchStackOptions& options);

}  // namespace carpool
