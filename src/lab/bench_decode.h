// End-to-end decode speed: B sequences fed from a text, one position per step.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/policy_chooser.h"
#include "lab/lockstep.h"
#include "lab/statistics.h"

namespace carpool {

struct BenchDecodeOptions {
  std::vector<size_t> batches = {1, 4, 16};
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  std::vector<std::shared_ptr<PolicyChooser>> choosers;  // more lanes, after the policies'
  std::vector<size_t> contexts = {128};  // positions already cached when timing starts
  size_t steps = 64;                     // timed steps per row
  size_t prefill = 0;                    // tokens of a prompt to time; 0: none
  size_t prefill_runs = 3;
  size_t membw_bytes = size_t{1} << 30;  // memory the bandwidth is measured on
  Activations activations = Activations::kF32;
  std::function<void(size_t done, size_t total)> progress;
};

struct BenchRow {
  size_t batch = 0, context = 0;
  std::string routing;
  double distinct_experts = 0.0;
  double us_median = 0.0, us_p10 = 0.0, us_p90 = 0.0;  // per step
  double gbytes_per_s = 0.0;  // routed expert bytes over the time spent in experts
  double fraction_of_membw = 0.0;
  double moe_us_per_layer = 0.0;
  double tokens_per_s = 0.0;
};

struct PrefillRow {
  std::string routing;
  double us_best = 0.0, us_median = 0.0;  // of the whole prompt and the logits of its last token
};

struct BenchDecodeReport {
  std::vector<BenchRow> rows;
  std::vector<PrefillRow> prefill;  // one per fixed policy
  double membw_gbytes_per_s = 0.0;
};

/// `x`: token ids the sequences are cut from (wrapped around when too few). One row per (context,
/// batch, policy); the policies of a batch are interleaved step by step so that drift of the
/// machine hits all of them.
Result<BenchDecodeReport> BenchDecode(const Model& model, ThreadPool& pool,
                                      std::span<const int32_t> x,
                                      const BenchDecodeOptions& options);

}  // namespace carpool
