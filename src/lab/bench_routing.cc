#include "lab/bench_routing.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "routing/routing_config.h"

namespace carpool {
namespace {

constexpr size_t kInputs = 8;  // different steps, so that branch prediction cannot learn one
constexpr size_t kMaxBatch = 8192;
constexpr double kSecondsPerRow = 0.2;

double Percentile(const std::vector<double>& sorted, double p) {
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(p * static_cast<double>(sorted.size())))];
}

struct Contender {
  std::unique_ptr<Router> router;
  std::vector<double> us;
  uint64_t distinct = 0;
  uint64_t calls = 0;
};

}  // namespace

Result<std::vector<BenchRoutingRow>> BenchRouting(const BenchRoutingOptions& options) {
  ASSIGN_OR_RETURN(const RoutingConfig config, PresetConfig(options.shape));
  ASSIGN_OR_RETURN(const GateSpec gate, ModelGate(config));
  std::mt19937_64 rng(options.seed);
  std::normal_distribution<float> normal;
  std::vector<float> bias(gate.has_bias ? gate.num_experts : 0);
  for (float& b : bias) b = 0.1f * normal(rng);
  std::vector<BenchRoutingRow> out;
  for (const size_t batch : options.batches) {
    if (batch == 0 || batch > kMaxBatch) {
      return MakeError(ErrorCode::kInvalidArgument, "--batch: wanted 1..{}, got {}", kMaxBatch,
                       batch);
    }
    std::vector<float> logits(kInputs * batch * gate.num_experts);
    for (float& x : logits) x = normal(rng);
    const std::vector<RowInfo> rows(batch);
    std::vector<Contender> contenders;
    for (const auto& policy : options.policies) {
      ASSIGN_OR_RETURN(auto router, Router::Make(gate, policy, 1, batch));
      contenders.push_back({std::move(router), {}, 0, 0});
    }
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const size_t repeats = options.repeats;
    for (size_t i = 0;; ++i) {
      const bool warm = i >= 3;
      for (Contender& c : contenders) {
        const float* step = logits.data() + i % kInputs * batch * gate.num_experts;
        const MatView<const float> view(step, batch, gate.num_experts);
        const auto before = Clock::now();
        const RoutedStep routed = c.router->Route(0, rows, view, bias);
        const auto after = Clock::now();
        if (!warm) continue;
        c.us.push_back(std::chrono::duration<double, std::micro>(after - before).count());
        c.distinct += routed.stats.distinct_experts;
        ++c.calls;
      }
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      const bool enough =
          repeats != 0
              ? i >= repeats + 2
              : i >= 23 && seconds > kSecondsPerRow * static_cast<double>(contenders.size());
      if (enough) break;
    }
    for (size_t p = 0; p < contenders.size(); ++p) {
      Contender& c = contenders[p];
      std::sort(c.us.begin(), c.us.end());
      BenchRoutingRow row;
      row.batch = batch;
      row.routing = PolicyText(*options.policies[p]);
      row.distinct_experts = static_cast<double>(c.distinct) / static_cast<double>(c.calls);
      row.us_median = Percentile(c.us, 0.5);
      row.us_p10 = Percentile(c.us, 0.1);
      row.us_p90 = Percentile(c.us, 0.9);
      row.tokens_per_s = static_cast<double>(batch) * 1e6 / row.us_median;
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace carpool
