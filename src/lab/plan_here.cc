#include "lab/plan_here.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/aligned.h"
#include "lab/bench_membw.h"
#include "ops/experts.h"
#include "quant/random_matrix.h"

namespace carpool {
namespace {

// 1.8 MB in four bits: in the second-level caches of two cores, and long enough that starting the
// threads does not count.
constexpr size_t kProbeHidden = 2048, kProbeWidth = 512;
constexpr size_t kProbeRows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

/// 10^9 multiply-adds per second of one expert that stays in cache, all threads together.
double ProbeRate(const ExpertBank& bank, ThreadPool& pool, size_t rows, Activations activations) {
  AlignedBuffer<float> x(rows * kProbeHidden), y(rows * kProbeHidden);
  for (size_t i = 0; i < rows * kProbeHidden; ++i) x.data()[i] = std::sin(static_cast<float>(i));
  const int32_t expert = 0;
  const uint32_t offsets[] = {0, static_cast<uint32_t>(rows)};
  std::vector<int32_t> row_of_slot(rows);
  std::vector<float> weights(rows, 1.0f);
  std::vector<uint32_t> row_offsets(rows + 1), slot_of(rows);
  for (size_t r = 0; r < rows; ++r) {
    row_of_slot[r] = static_cast<int32_t>(r);
    slot_of[r] = row_offsets[r] = static_cast<uint32_t>(r);
  }
  row_offsets[rows] = static_cast<uint32_t>(rows);
  const ExpertPlan plan{{&expert, 1}, offsets, row_of_slot, weights, row_offsets, slot_of};
  Arena arena;
  OpContext context{pool, arena, activations};
  const double macs = static_cast<double>(rows) * 3 * kProbeHidden * kProbeWidth;
  double best = 0.0;  // interruptions only ever make it slower
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0;
       i < 8 || std::chrono::steady_clock::now() - start < std::chrono::milliseconds(20); ++i) {
    arena.Reset();
    const auto begin = std::chrono::steady_clock::now();
    RunExperts(bank, {x.data(), rows, kProbeHidden}, plan, {y.data(), rows, kProbeHidden}, context);
    const std::chrono::duration<double, std::nano> ns = std::chrono::steady_clock::now() - begin;
    best = std::max(best, macs / ns.count());
  }
  return best;
}

}  // namespace

Result<std::vector<ArithmeticRate>> MeasureArithmetic(size_t threads, WeightFormat format,
                                                      Activations activations) {
  ThreadPool pool(threads);
  const OwnedMatrix gate = RandomMatrix(format, kProbeWidth, kProbeHidden, 1),
                    up = RandomMatrix(format, kProbeWidth, kProbeHidden, 2),
                    down = RandomMatrix(format, kProbeHidden, kProbeWidth, 3);
  const ExpertSource source{gate.view, up.view, down.view};
  ASSIGN_OR_RETURN(const ExpertBank bank,
                   ExpertBank::Pack({&source, 1}, nullptr, pool, {.format = format}));
  std::vector<ArithmeticRate> rates;
  for (const size_t rows : kProbeRows) rates.push_back({rows, 0.0});
  // In rounds: on a shared machine a core can be taken away for as long as one round lasts.
  for (int round = 0; round < 5; ++round)
    for (ArithmeticRate& rate : rates)
      rate.gmacs = std::max(rate.gmacs, ProbeRate(bank, pool, rate.rows, activations));
  return rates;
}

Result<Hardware> MeasureHardware(size_t threads, WeightFormat format, Activations activations,
                                 size_t membw_bytes) {
  Hardware h;
  h.name = "here";
  h.bandwidth_gbs = BestBandwidth(BenchMembw({threads}, membw_bytes, 8));
  h.memory_gb = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                static_cast<double>(sysconf(_SC_PAGESIZE)) * 1e-9;
  h.cache_mb = static_cast<double>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE))) * 1e-6;
  h.launch_us = 5;  // a parallel region and its barrier
  h.launches = 3;
  ASSIGN_OR_RETURN(const auto rates, MeasureArithmetic(threads, format, activations));
  for (const ArithmeticRate& rate : rates) {
    h.rate_rows.push_back(rate.rows);
    h.rate_gmacs.push_back(rate.gmacs);
  }
  return h;
}

Result<VerifyReport> VerifyPlan(const VerifyOptions& options) {
  PlanOptions o = options.plan;
  o.layer_only = true;
  VerifyReport report;
  const auto measure = [&] {
    return MeasureHardware(options.threads, o.expert_format, options.activations,
                           options.membw_bytes);
  };
  ASSIGN_OR_RETURN(report.hardware, measure());
  o.hardware = report.hardware;
  ASSIGN_OR_RETURN(PlanReport plan, MakePlan(o));
  // A real model's other layers push a layer out of the cache until its turn comes again.
  constexpr double kResidentBytes = 2e9;
  report.layers = std::clamp<size_t>(
      static_cast<size_t>(std::ceil(kResidentBytes / plan.weight_bytes)), 1, o.shape.moe_layers);
  report.cache_resident =
      static_cast<double>(report.layers) * plan.weight_bytes < report.hardware.cache_mb * 1e6;
  BenchMoeOptions bench;
  bench.shape = o.shape;
  bench.layers = report.layers;
  bench.format = o.expert_format;
  bench.activations = options.activations;
  bench.batches = o.batches;
  bench.policies = o.policies;
  bench.threads = options.threads;
  bench.seed = o.seed;
  bench.seconds = options.seconds;
  bench.membw_bytes = options.membw_bytes;
  bench.progress = options.progress;
  ASSIGN_OR_RETURN(const BenchMoeReport measured, BenchMoe(bench));
  // What the machine gives drifts while the layers are measured: the hardware is read on both sides
  // of them.
  ASSIGN_OR_RETURN(const Hardware after, measure());
  report.hardware.bandwidth_gbs = (report.hardware.bandwidth_gbs + after.bandwidth_gbs) / 2;
  for (size_t i = 0; i < after.rate_gmacs.size(); ++i)
    report.hardware.rate_gmacs[i] = std::max(report.hardware.rate_gmacs[i], after.rate_gmacs[i]);
  o.hardware = report.hardware;
  ASSIGN_OR_RETURN(plan, MakePlan(o));
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    report.rows.push_back({o.shape.name, plan.rows[i].batch, plan.rows[i].routing, plan.rows[i].us,
                           measured.rows[i].us_median});
  }
  return report;
}

}  // namespace carpool
