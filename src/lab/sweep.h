// Sweep: policies x settings x batch sizes, measured against vanilla; the Pareto front; and the
// fastest setting per batch size that stays inside a quality budget.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lab/latency_fit.h"
#include "lab/pace.h"
#include "lab/quality.h"

namespace carpool {

/// One policy at one batch size.
struct SweepPoint {
  size_t batch = 0;
  std::string routing;  // canonical text
  size_t tokens = 0;    // scored
  double cross_entropy = 0.0, ce_change = 0.0;
  double kl_mean = 0.0, kl_p99 = 0.0, kl_worst_request = 0.0, top1_agreement = 1.0;
  double distinct_experts = 0.0;  // T, teacher-forced
  double experts_per_row = 0.0;
  double assignments = 0.0;            // per layer and step, free-running like what follows
  double distinct_experts_free = 0.0;  // T
  double bytes_per_step = 0.0;         // routed experts
  double step_us = 0.0, moe_us = 0.0;  // medians; moe per layer
  double tokens_per_s = 0.0;
  Interval step_ratio{1.0, 1.0, 1.0};  // to vanilla, paired
};

/// One MoE layer alone under oea:k0=x, all others vanilla.
struct LayerPoint {
  size_t batch = 0, layer = 0, k0 = 0;
  double kl_mean = 0.0;
  double distinct_experts = 0.0;  // T of this layer, teacher-forced
};

/// What a setting may cost, per batch size. All must hold.
struct QualityBudget {
  double max_kl = 0.01;     // mean KL, nats
  double max_kl_p99 = 0.1;  // KL at the 99th percentile of positions
  double max_ce = std::numeric_limits<double>::infinity();  // cross-entropy change, nats
  bool Allows(const SweepPoint& p) const {
    return p.kl_mean <= max_kl && p.kl_p99 <= max_kl_p99 && p.ce_change <= max_ce;
  }
};

struct SweepOptions {
  std::vector<size_t> batches = {4, 16, 64};
  /// One list per batch size; vanilla is always measured besides.
  std::vector<std::vector<std::shared_ptr<const PolicySpec>>> policies;
  size_t context = 256;
  size_t tokens = 16384;  // scored per policy and batch size, about
  PaceOptions pace;       // batch is set per size
  uint64_t seed = 0;
  /// Called with every measured group of points; an error ends the sweep.
  std::function<Status(const std::vector<SweepPoint>&)> on_points;
  std::function<Status(const std::vector<LayerPoint>&)> on_layers;
  std::function<void(size_t done, size_t total)> progress;
};

/// The default grid: topk and oea over the useful k, the budgeted policies over shares of the
/// experts, near and ser.
std::vector<std::string> DefaultSweepPolicies(const GateSpec& gate, size_t batch);

/// Measures every (batch, policy) that `known` does not hold already (an interrupted sweep's
/// points) and returns all, vanilla first within a batch size. Policies that cannot differ from
/// vanilla at a batch size are left out there. Errors: as MeasureQuality and MeasurePace.
Result<std::vector<SweepPoint>> RunSweep(const Model& model, ThreadPool& pool,
                                         std::span<const int32_t> x, const SweepOptions& options,
                                         std::vector<SweepPoint> known);

/// Points of each batch size that no other point of it beats in both T and cross-entropy.
std::vector<SweepPoint> ParetoFront(const std::vector<SweepPoint>& points);

/// Per batch size: the smallest step-time ratio within the budget whose interval lies below 1, else
/// vanilla.
std::vector<SweepPoint> Recommend(const std::vector<SweepPoint>& points,
                                  const QualityBudget& budget);

/// Over all points' MoE times. Errors as FitLatency.
Result<LatencyFit> FitSweep(const std::vector<SweepPoint>& points);

/// "oea" of "oea:k0=3", "oea per layer" of "oea:k0=3/4/5".
std::string PolicyFamily(const std::string& routing);

}  // namespace carpool
