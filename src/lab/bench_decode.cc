#include "lab/bench_decode.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "lab/bench_membw.h"
#include "lab/perplexity.h"

namespace carpool {
namespace {

/// One context and batch size, all policies.
Status BenchBatch(const Model& model, ThreadPool& pool, std::span<const int32_t> x,
                  const BenchDecodeOptions& o, size_t context, size_t batch,
                  const std::function<void()>& step_done, std::vector<BenchRow>& rows) {
  struct Lane {
    std::unique_ptr<Router> router;
    std::unique_ptr<Lockstep> lockstep;
    std::shared_ptr<PolicyChooser> chooser;  // may be null
    std::vector<double> us;
  };
  // Sequence b starts at its own place in the text, so that the rows of a step are different
  // tokens.
  const size_t stride = std::max<size_t>(x.size() / batch, 1);
  const auto token = [&](size_t b, size_t i) { return x[(b * stride + i) % x.size()]; };
  std::vector<int32_t> prompt(batch * std::max<size_t>(context, 1));
  for (size_t b = 0; b < batch; ++b) {
    for (size_t i = 0; i < context; ++i) prompt[b * context + i] = token(b, i);
  }
  std::vector<Lane> lanes;
  const auto route = [&](Lane& lane, std::shared_ptr<const PolicySpec> policy) -> Status {
    ASSIGN_OR_RETURN(lane.router,
                     Router::Make(model.config().gate, std::move(policy),
                                  model.config().NumMoeLayers(), std::max<size_t>(batch, 256)));
    if (lane.lockstep != nullptr) lane.lockstep->set_router(*lane.router);
    return {};
  };
  for (size_t i = 0; i < o.policies.size() + o.choosers.size(); ++i) {
    Lane lane;
    if (i >= o.policies.size()) lane.chooser = o.choosers[i - o.policies.size()];
    RETURN_IF_ERROR(
        route(lane, lane.chooser == nullptr ? o.policies[i] : lane.chooser->Choose(batch, {})));
    lane.lockstep = std::make_unique<Lockstep>(model, pool, *lane.router, o.activations, batch,
                                               context + o.steps);
    lane.lockstep->Prefill({prompt.data(), batch, context});
    lane.lockstep->stats().Clear();
    lanes.push_back(std::move(lane));
  }
  std::vector<int32_t> tokens(batch);
  for (size_t step = 0; step < o.steps; ++step) {
    for (size_t b = 0; b < batch; ++b) tokens[b] = token(b, context + step);
    for (Lane& lane : lanes) {
      if (lane.chooser != nullptr) {
        auto policy = lane.chooser->Choose(batch, lane.lockstep->stats());
        if (policy.get() != &lane.router->policy()) RETURN_IF_ERROR(route(lane, policy));
      }
      const auto start = std::chrono::steady_clock::now();
      lane.lockstep->Step(tokens);
      lane.us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count());
    }
    step_done();
  }
  for (Lane& lane : lanes) {
    const StepStats& stats = lane.lockstep->stats();
    BenchRow row;
    row.batch = batch;
    row.context = context;
    row.routing = PolicyText(lane.router->policy());
    if (lane.chooser != nullptr)
      row.routing = fmt::format("{} ({})", lane.chooser->Report().name, row.routing);
    row.distinct_experts = DistinctExpertsMean(stats);
    row.us_median = Quantile(lane.us, 0.5);
    row.us_p10 = Quantile(lane.us, 0.1);
    row.us_p90 = Quantile(lane.us, 0.9);
    row.gbytes_per_s = static_cast<double>(stats.expert_bytes) /
                       static_cast<double>(std::max<uint64_t>(stats.experts_ns, 1));
    row.moe_us_per_layer = static_cast<double>(stats.router_ns + stats.experts_ns) / 1e3 /
                           static_cast<double>(stats.steps) /
                           static_cast<double>(std::max<size_t>(stats.moe.size(), 1));
    row.tokens_per_s = static_cast<double>(batch) / row.us_median * 1e6;
    rows.push_back(row);
  }
  return {};
}

/// One sequence of o.prefill tokens in one step, policies in turn.
Status BenchPrefill(const Model& model, ThreadPool& pool, std::span<const int32_t> x,
                    const BenchDecodeOptions& o, std::vector<PrefillRow>& rows) {
  std::vector<int32_t> prompt(o.prefill);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = x[i % x.size()];
  std::vector<std::vector<double>> us(o.policies.size());
  for (size_t run = 0; run < o.prefill_runs; ++run) {
    for (size_t p = 0; p < o.policies.size(); ++p) {
      ASSIGN_OR_RETURN(auto router, Router::Make(model.config().gate, o.policies[p],
                                                 model.config().NumMoeLayers(), prompt.size()));
      Lockstep lockstep(model, pool, *router, o.activations, 1, prompt.size());
      const auto start = std::chrono::steady_clock::now();
      lockstep.PrefillForLogits(prompt);
      us[p].push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count());
    }
  }
  for (size_t p = 0; p < o.policies.size(); ++p)
    rows.push_back({PolicyText(*o.policies[p]), Quantile(us[p], 0.0), Quantile(us[p], 0.5)});
  return {};
}

}  // namespace

Result<BenchDecodeReport> BenchDecode(const Model& model, ThreadPool& pool,
                                      std::span<const int32_t> x, const BenchDecodeOptions& o) {
  if (x.empty())
    return MakeError(ErrorCode::kInvalidArgument, "bench decode: the text has no tokens");
  for (const size_t context : o.contexts) {
    if (context + o.steps > model.config().max_position) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "--context {} + --steps {}: wanted at most the model's {} positions",
                       context, o.steps, model.config().max_position);
    }
  }
  if (o.prefill > model.config().max_position) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--prefill {}: wanted at most the model's {} positions", o.prefill,
                     model.config().max_position);
  }
  constexpr size_t kPasses = 8;
  const auto roof = [&] {
    return BestBandwidth(BenchMembw({pool.num_threads()}, o.membw_bytes, kPasses));
  };
  BenchDecodeReport report;
  report.membw_gbytes_per_s = roof();
  size_t done = 0;
  const size_t total = o.contexts.size() * o.batches.size() * o.steps;
  const auto step_done = [&] {
    if (o.progress) o.progress(++done, total);
  };
  for (const size_t context : o.contexts) {
    for (const size_t batch : o.batches)
      RETURN_IF_ERROR(BenchBatch(model, pool, x, o, context, batch, step_done, report.rows));
  }
  if (o.prefill > 0) RETURN_IF_ERROR(BenchPrefill(model, pool, x, o, report.prefill));
  report.membw_gbytes_per_s = std::max(report.membw_gbytes_per_s, roof());
  for (BenchRow& row : report.rows)
    row.fraction_of_membw = row.gbytes_per_s / report.membw_gbytes_per_s;
  return report;
}

}  // namespace carpool
