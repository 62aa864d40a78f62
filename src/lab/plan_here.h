// This machine for the planner: bandwidth and arithmetic rates it can tell by itself, and a check
// of the plan against measured layers.
#pragma once

#include <functional>

#include "lab/bench_moe.h"
#include "lab/plan.h"

namespace carpool {

/// Multiply-add rate of one expert that stays in cache, all threads together.
struct ArithmeticRate {
  size_t rows = 0;
  double gmacs = 0.0;  // 10^9 multiply-adds per second
};
/// At 1 to 32 rows, ascending.
Result<std::vector<ArithmeticRate>> MeasureArithmetic(size_t threads, WeightFormat format,
                                                      Activations activations);

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

struct VerifyOptions {
  PlanOptions plan;  // hardware is measured here
  size_t threads = 1;
  Activations activations = Activations::kQ8;
  double seconds = 3.0;                  // timed, per batch size
  size_t membw_bytes = size_t{1} << 30;  // memory the bandwidth is measured on
  std::function<void(size_t done, size_t total)> progress;
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  Hardware hardware;
  size_t layers = 1;            // held in memory and gone around, so that no cache holds them
  bool cache_resident = false;  // all of them fit into the cache nevertheless
};

/// Measures what the plan asks of this machine, predicts one MoE layer per batch size and policy,
/// then measures that layer with BenchMoe on synthetic weights. Nothing the latter measures enters
/// the prediction.
Result<VerifyReport> VerifyPlan(const VerifyOptions& options);

}  // namespace carpool
