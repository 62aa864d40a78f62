#include "lab/bench_stack.h"

#include <algorithm>
#include <chrono>

#include "base/memory_info.h"
#include "lab/bench_membw.h"
#include "lab/lockstep.h"
#include "lab/perplexity.h"
#include "lab/statistics.h"

namespace carpool {
namespace {

/// How many MoE layers fit beside the rest, or whether the wanted ones do.
Result<size_t> ChooseLayers(const BenchStackOptions& o) {
  constexpr size_t kReserve = size_t{1} << 30;
  SyntheticOptions one = o.model;
  one.moe_layers = 1;
  ASSIGN_OR_RETURN(const size_t layer_bytes, SyntheticModel::LayerBytes(one));
  ASSIGN_OR_RETURN(const size_t other_bytes, SyntheticModel::OtherBytes(one));
  const size_t deepest = *std::max_element(o.contexts.begin(), o.contexts.end());
  const size_t most_rows = *std::max_element(o.batches.begin(), o.batches.end());
  const size_t cache = most_rows * (deepest + kPageTokens) * SyntheticModel::CacheBytesPerToken();
  const size_t available = AvailableMemory();
  const size_t fixed = other_bytes + cache + kReserve;  // the dense layer has a cache as well
  const size_t per_layer = layer_bytes + cache;
  const size_t fit = available > fixed ? (available - fixed) / per_layer : 0;
  const size_t wanted = o.model.moe_layers == 0 ? 1 : o.model.moe_layers;
  if (fit < wanted) {
    return MakeError(ErrorCode::kExhausted,
                     "{} MoE layers of {} with caches for {} x {} tokens need {:.1f} GB, {:.1f} GB "
                     "are free; wanted fewer --layers, --batch or --context",
                     wanted, o.model.shape, most_rows, deepest,
                     static_cast<double>(fixed + wanted * per_layer) * 1e-9,
                     static_cast<double>(available) * 1e-9);
  }
  return o.model.moe_layers == 0 ? std::min<size_t>(fit, 75) : wanted;
}

double Us(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

StackTimes TimesOf(const StepStats& s) {
  StackTimes t;
  t.projections = Us(s.attention_ns - s.indexer_ns - s.keys_ns);
  t.indexer = Us(s.indexer_ns);
  t.keys = Us(s.keys_ns);
  t.router = Us(s.router_ns);
  t.experts = Us(s.experts_ns);
  t.dense = Us(s.dense_ns);
  t.head = Us(s.head_ns);
  t.other = Us(s.total_ns) - t.Total();
  return t;
}

/// One policy's steps at one batch size and context.
struct StackLane {
  std::unique_ptr<Router> router;
  std::vector<double> us, model_us, moe_us;
  StackTimes sum;
  uint64_t expert_bytes = 0;
  double distinct = 0.0;

  void Add(const StepStats& stats, double step_us, const SyntheticShape& shape, size_t moe_layers) {
    const StackTimes t = TimesOf(stats);
    const auto moe = static_cast<double>(moe_layers), layers = moe + 1.0;
    const auto all = static_cast<double>(shape.dense_layers + shape.moe_layers);
    us.push_back(step_us);
    moe_us.push_back((t.router + t.experts) / moe);
    model_us.push_back((t.projections + t.indexer + t.keys + t.other) / layers * all +
                       (t.router + t.experts) / moe * static_cast<double>(shape.moe_layers) +
                       t.dense * static_cast<double>(shape.dense_layers) +
                       t.head * static_cast<double>(shape.vocab) /
                           static_cast<double>(kSyntheticVocab));
    sum.projections += t.projections;
    sum.indexer += t.indexer;
    sum.keys += t.keys;
    sum.router += t.router;
    sum.experts += t.experts;
    sum.dense += t.dense;
    sum.head += t.head;
    sum.other += t.other;
    expert_bytes += stats.expert_bytes;
    distinct += DistinctExpertsMean(stats);
  }

  BenchStackRow Row(size_t batch, size_t context) const {
    const auto n = static_cast<double>(us.size());
    BenchStackRow row;
    row.batch = batch;
    row.context = context;
    row.routing = PolicyText(router->policy());
    row.distinct_experts = distinct / n;
    row.us_median = Quantile(us, 0.5);
    row.us_p10 = Quantile(us, 0.1);
    row.us_p90 = Quantile(us, 0.9);
    row.stack = {sum.projections / n, sum.indexer / n, sum.keys / n, sum.router / n,
                 sum.experts / n,     sum.dense / n,   sum.head / n, sum.other / n};
    row.moe_us_per_layer = Quantile(moe_us, 0.5);
    row.gbytes_per_s = static_cast<double>(expert_bytes) / (sum.experts * 1e3);
    row.model_us = Quantile(model_us, 0.5);
    row.tokens_per_s = static_cast<double>(batch) / row.model_us * 1e6;
    return row;
  }
};

}  // namespace

Result<BenchStackReport> BenchStack(const BenchStackOptions& o) {
  BenchStackReport report;
  ASSIGN_OR_RETURN(report.shape, FindSyntheticShape(o.model.shape));
  ThreadPool pool(o.threads);
  constexpr size_t kPasses = 8;
  const auto roof = [&] { return BestBandwidth(BenchMembw({o.threads}, o.membw_bytes, kPasses)); };
  SyntheticOptions model_options = o.model;
  ASSIGN_OR_RETURN(report.moe_layers, ChooseLayers(o));
  report.membw_gbytes_per_s = roof();
  model_options.moe_layers = report.moe_layers;
  ASSIGN_OR_RETURN(const auto synthetic, SyntheticModel::Make(model_options, pool));
  const Model& model = synthetic->model();
  const size_t deepest = *std::max_element(o.contexts.begin(), o.contexts.end());
  if (deepest >= model.config().max_position) {
    return MakeError(ErrorCode::kInvalidArgument, "--context {}: wanted less than {}", deepest,
                     model.config().max_position);
  }
  size_t done = 0;
  for (const size_t batch : o.batches) {
    std::vector<StackLane> lanes(o.policies.size());
    for (size_t p = 0; p < lanes.size(); ++p) {
      ASSIGN_OR_RETURN(lanes[p].router, Router::Make(model.config().gate, o.policies[p],
                                                     model.config().NumMoeLayers(), batch));
    }
    Lockstep lockstep(model, pool, *lanes[0].router, o.activations, batch, deepest + 1);
    lockstep.PretendPrefill(deepest, o.model.seed);
    std::vector<int32_t> tokens(batch);
    uint32_t state = static_cast<uint32_t>(o.model.seed) + 1;
    std::vector<size_t> contexts = o.contexts;  // deepest first: the cache shrinks by rewinding
    std::sort(contexts.rbegin(), contexts.rend());
    for (const size_t context : contexts) {
      for (StackLane& lane : lanes) {
        lane = StackLane{std::move(lane.router), {}, {}, {}, {}, 0, 0.0};
      }
      for (size_t step = 0; step < o.steps + 1; ++step) {  // the first one warms up
        for (int32_t& token : tokens) {
          state = state * 1664525u + 1013904223u;
          token = static_cast<int32_t>((state >> 8) % kSyntheticVocab);
        }
        for (size_t j = 0; j < lanes.size(); ++j) {
          StackLane& lane = lanes[(j + step) % lanes.size()];
          lockstep.set_router(*lane.router);
          lockstep.Rewind(context);
          lockstep.stats().Clear();
          const auto start = std::chrono::steady_clock::now();
          lockstep.Step(tokens);
          const std::chrono::duration<double, std::micro> us =
              std::chrono::steady_clock::now() - start;
          if (step > 0) lane.Add(lockstep.stats(), us.count(), report.shape, report.moe_layers);
        }
      }
      const size_t first = report.rows.size();
      for (const StackLane& lane : lanes) {
        BenchStackRow row = lane.Row(batch, context);
        const BenchStackRow& baseline = report.rows.size() == first ? row : report.rows[first];
        row.model_gain = baseline.model_us / row.model_us;
        row.moe_gain = baseline.moe_us_per_layer / row.moe_us_per_layer;
        report.rows.push_back(std::move(row));
      }
      if (o.progress) o.progress(++done, o.batches.size() * contexts.size());
    }
  }
  report.membw_gbytes_per_s = std::max(report.membw_gbytes_per_s, roof());
  for (auto& row : report.rows)
    row.fraction_of_membw = row.gbytes_per_s / report.membw_gbytes_per_s;
  return report;
}

}  // namespace carpool
