// Speed of a MoE layer, hidden in to hidden out, on synthetic weights of a real model's size.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/views.h"
#include "lab/moe_shapes.h"
#include "lab/statistics.h"
#include "ops/op_context.h"
#include "routing/router.h"

namespace carpool {

/// How router logits are made. Independent ones come from the router's own product: standard normal
/// for every (row, expert), since hidden states and router weights are random. To these are added
///   popularity * n[layer, expert]: some experts are liked by every row of every step;
///   topic * n[step, expert]:       the rows of one step like the same experts,
/// n standard normal. Both 0 is the random default.
struct LogitGenerator {
  float popularity = 0.0f;
  float topic = 0.0f;
};
/// "random" or "skewed[:popularity=1,topic=0]".
Result<LogitGenerator> ParseLogitGenerator(std::string_view text);

/// One timed step: what anything compared with it has to compute.
struct BenchMoeStep {
  size_t batch = 0;
  std::string routing;
  double us = 0.0;
  MatView<const int32_t> ids;  // [batch, slots], -1 = unused; valid during the call
};

struct BenchMoeOptions {
  MoeShape shape;
  WeightFormat format = WeightFormat::kNVFP4;
  Activations activations = Activations::kQ8;
  std::vector<size_t> batches = {1};
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  LogitGenerator logits;
  size_t layers = 1;  // resident; steps go around them
  size_t threads = 1;
  bool experts_only = false;  // neither shared expert nor, in the timing, router and policy
  uint64_t seed = 0;
  double seconds = 4.0;                  // of timed steps per batch size, all policies together
  size_t membw_bytes = size_t{1} << 30;  // memory the bandwidth is measured on
  std::function<void(size_t done, size_t total)> progress;
  std::function<void(const BenchMoeStep&)> on_step;
};

struct BenchMoeRow {
  size_t batch = 0;
  std::string routing;
  size_t steps = 0;
  double distinct_experts = 0.0;  // mean
  double rows_per_expert = 0.0;   // assignments / distinct experts, of the means
  double us_median = 0.0, us_p10 = 0.0, us_p90 = 0.0;
  double gbytes_per_s = 0.0;  // median over steps of bytes of weights read / time
  double fraction_of_membw = 0.0;
  double tokens_per_s = 0.0;  // batch / us_median: of this one layer
};

/// Time against distinct experts over the policies of one batch size.
struct BenchMoeFit {
  size_t batch = 0;
  LinearFit us_per_expert;
};

/// A policy's share of time saved against the batch size's first policy: as the line through all
/// other policies' (T, time) has it, and as measured.
struct BenchMoeSaving {
  size_t batch = 0;
  std::string routing;
  double predicted = 0.0, measured = 0.0;
};

struct BenchMoeReport {
  std::vector<BenchMoeRow> rows;
  std::vector<BenchMoeFit> fits;        // batch sizes with at least three policies
  std::vector<BenchMoeSaving> savings;  // batch sizes with at least four
  double membw_gbytes_per_s = 0.0;      // best of before and after the timed steps
  size_t bytes_per_expert = 0;
  size_t bytes_always = 0;  // router and shared expert, where they are timed
  std::string isa;
};

/// Router product, gate, policy and experts, timed as one, or the routed experts alone. Policies of
/// a batch size take turns step by step with fresh hidden states, so that drift of the machine hits
/// all alike. The shared expert has the routed ones' format; the router is bf16. Errors: policy and
/// gate that do not fit, not enough memory.
Result<BenchMoeReport> BenchMoe(const BenchMoeOptions& options);

}  // namespace carpool
