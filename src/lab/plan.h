// Plan: T, bytes, time and tokens/s of a model on given hardware, and whether OEA pays there.
//
// Formulas and sources: docs/LAB.md, "The plan".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lab/hardware.h"
#include "lab/moe_shapes.h"
#include "routing/router.h"

namespace carpool {

struct PlanOptions {
  MoeShape shape;
  Hardware hardware;
  WeightFormat expert_format = WeightFormat::kNVFP4;
  WeightFormat dense_format = WeightFormat::kBF16;
  std::vector<size_t> batches = {1, 2, 4, 8, 16, 32, 64};
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  size_t context = 4096;  // cached tokens per sequence
  /// T measured elsewhere (a trace, `bench`), one per (batch, policy) in order; empty: independent
  /// random routing, drawn `draws` times through the router itself.
  std::vector<double> measured_t;
  bool layer_only = false;  // one MoE layer instead of the whole model
  size_t draws = 40;
  uint64_t seed = 0;
};

struct PlanRow {
  size_t batch = 0;
  std::string routing;
  double distinct_experts = 0.0;  // T
  double uniform_bound = 0.0;     // N (1 - (1 - k/N)^B) of the policy's own experts
  double rows_per_expert = 0.0;
  double bytes = 0.0;   // read per step, all devices together
  std::string bound;    // memory, compute, latency: the largest part of the step
  double moe_us = 0.0;  // of one MoE layer
  double us = 0.0;      // of the step
  double tokens_per_s = 0.0;
  double speedup = 1.0;  // against the first policy of the batch size
};

struct PlanReport {
  std::vector<PlanRow> rows;
  double expert_bytes = 0.0;                                      // one expert
  double weight_bytes = 0.0, kv_bytes = 0.0, memory_bytes = 0.0;  // kv: of the largest batch
  bool fits = true;
  bool cache_resident = false;  // a layer's experts fit into the cache: DRAM is not the limit
  double balance_rows = 0.0;    // rows per expert from which an expert is compute-bound
  std::string expert_sentence;  // reading one expert against multiplying by it
  std::string sentence;         // whether a batch-coupled policy pays here, and why
};

Result<PlanReport> MakePlan(const PlanOptions& options);

}  // namespace carpool
