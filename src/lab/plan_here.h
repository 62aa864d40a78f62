// This machine for the planner: bandwidth and arithmetic rates it can tell by itself, and a check
// of the plan against measured layers.
#pragma once

#include <functional>

#include "lab/bench_moe.h"
#include "lab/plan.h"

namespace carpool {

/// Measures read bandwidth on `membw_bytes` of memory and the multiply-add rate of one
/// cache-resident expert at 1 to 32 rows. Memory is what the system says is there.
Result<Hardware> MeasureHardware(size_t threads, WeightFormat format, Activations activations,
                                 size_t membw_bytes);

struct VerifyRow {
  std::string shape;
  size_t batch = 0;
  std::string routing;
  double predicted_us = 0.0, measured_us = 0.0;
  double error() const { return predicted_us / measured_us - 1.0; }
};

/// Predicts one MoE layer per batch size and policy, then measures it with BenchMoe on synthetic
/// weights. Nothing measured by the latter enters the prediction.
Result<std::vector<VerifyRow>> VerifyPlan(const PlanOptions& options, size_t threads,
                                          Activations activations, double seconds,
                                          const std::function<void(size_t, size_t)>& progress);

}  // namespace carpool
