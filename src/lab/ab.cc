#include "lab/ab.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "routing/policy_spec.h"

namespace carpool {
namespace {

/// The knob's values for every layer: all equal to or beyond `bound`?
bool AllAtLeast(const PolicySpec& spec, std::string_view knob, double bound, double fallback) {
  const KnobValue* value = spec.Find(knob);
  if (value == nullptr) return fallback >= bound;
  return std::all_of(value->values.begin(), value->values.end(),
                     [bound](double v) { return v >= bound; });
}

/// Why every decode row of a `batch`-row step keeps vanilla routing under `spec`; empty if it may
/// not.
std::string WhyVanilla(const PolicySpec& spec, const GateSpec& gate, size_t batch) {
  const std::string text = PolicyText(spec);
  const std::string_view name = spec.kind->name;
  const auto k = static_cast<double>(gate.top_k);
  const auto most = static_cast<double>(std::min(gate.num_experts, batch * gate.top_k));
  if (name == "vanilla") return text + " is the model's own routing";
  if (spec.kind->batch_coupled && spec.min_rows > batch)
    return fmt::format("{} acts from {} rows on and the batch has {}", text, spec.min_rows, batch);
  if (text == spec.kind->neutral(gate)) return text + " is the model's own routing";
  const bool whole_mass = spec.Find("p") == nullptr;
  if ((name == "oea" && whole_mass && AllAtLeast(spec, "k0", k, k) &&
       !AllAtLeast(spec, "kmax", k + 1, k)) ||
      (name == "topk" && AllAtLeast(spec, "k", k, k)) ||
      (name == "ser" && AllAtLeast(spec, "kmin", k, k))) {
    return fmt::format("{} keeps all {} of a row's experts", text, gate.top_k);
  }
  if (((name == "lynx" || name == "cap") && AllAtLeast(spec, "budget", most, most)) ||
      (name == "xshare" &&
       AllAtLeast(spec, "budget", static_cast<double>(gate.num_experts), most))) {
    return fmt::format("the budget of {} covers everything {} rows can choose", text, batch);
  }
  return {};
}

void Count(AbSide& side, const StepStats& stats, size_t top_k) {
  for (const RoutingStats& layer : stats.moe) {
    const uint64_t kept = layer.rows * top_k - layer.dropped;
    side.assignments += layer.assignments;
    side.changed_assignments += layer.dropped + (layer.assignments - kept);
  }
}

/// Means of `of(request)` by stream.
template <typename Of>
std::vector<double> ByStream(const Quality& q, const Of& of) {
  std::map<size_t, std::pair<double, double>> sums;
  for (size_t i = 0; i < q.requests.size(); ++i) {
    auto& [sum, n] = sums[q.requests[i].stream];
    sum += of(i);
    n += 1.0;
  }
  std::vector<double> means;
  for (const auto& [stream, s] : sums) means.push_back(s.first / s.second);
  return means;
}

void QualityIntervals(AbReport& r, uint64_t seed) {
  const auto &c = r.candidate.quality.requests, &b = r.baseline.quality.requests;
  const auto change = ByStream(r.candidate.quality,
                               [&](size_t i) { return c[i].cross_entropy - b[i].cross_entropy; });
  r.has_quality_interval = change.size() >= kMinForInterval;
  if (!r.has_quality_interval) return;
  r.ce_change = BootstrapMean(change, seed);
  r.kl_mean = BootstrapMean(ByStream(r.candidate.quality, [&](size_t i) { return c[i].kl; }), seed);
}

std::string Price(const AbReport& r) {
  if (!r.has_quality || r.baseline.routing == r.candidate.routing) return {};
  const Quality& q = r.candidate.quality;
  return fmt::format(
      " Price: cross-entropy {:+.4f} nats, KL {}mean {:.5f}, p99 {:.4f}, top-1 agreement {:.2f} %.",
      q.cross_entropy - r.baseline.quality.cross_entropy, r.kl_is_bound ? "(lower bound) " : "",
      q.kl_mean, q.kl_p99, 100 * q.top1_agreement);
}

std::string Verdict(AbReport& r, double min_effect) {
  const Interval& t = r.step_ratio;
  const std::string interval =
      fmt::format("step-time ratio {:.4f}, 95 % interval {:.4f} to {:.4f}", t.value, t.low, t.high);
  const bool same = r.baseline.routing == r.candidate.routing;
  const bool acted = r.candidate.changed_assignments + r.baseline.changed_assignments > 0;
  if (!same && r.candidate.assignments > 0 && !acted) {
    return fmt::format("The candidate changed 0 assignments of {}: it never acted. ({})",
                       r.candidate.assignments, interval);
  }
  const std::string price = Price(r);
  if (t.Covers(1.0))
    return fmt::format("No winner: the difference is inside the noise ({}).{}", interval, price);
  // The whole interval must lie beyond the smallest effect: one that barely misses 1 is noise too.
  if (t.high > 1.0 - min_effect && t.low < 1.0 + min_effect) {
    return fmt::format("No winner: the difference may be below {:.1f} % ({}).{}", 100 * min_effect,
                       interval, price);
  }
  r.winner = t.value < 1.0 ? AbWinner::kCandidate : AbWinner::kBaseline;
  return fmt::format("The {} is faster: {} needs {:.1f} % {} time per step ({}).{}",
                     t.value < 1.0 ? "candidate" : "baseline", r.candidate.routing,
                     100 * std::abs(1.0 - t.value), t.value < 1.0 ? "less" : "more", interval,
                     price);
}

}  // namespace

void JudgeAb(AbReport& r, double min_effect, uint64_t seed) {
  const Pace &a = r.baseline.pace, &b = r.candidate.pace;
  r.step_ratio = PairedRatio(b.step_us, a.step_us, seed);
  if (r.has_moe_ratio) r.moe_ratio = PairedRatio(b.moe_us, a.moe_us, seed);
  if (r.has_quality) QualityIntervals(r, seed);
  r.winner = AbWinner::kNone;
  r.verdict = Verdict(r, min_effect);
}

std::string WhyNoDifference(const PolicySpec& baseline, const PolicySpec& candidate,
                            const GateSpec& gate, size_t batch) {
  if (PolicyText(baseline) == PolicyText(candidate)) return {};
  const std::string a = WhyVanilla(baseline, gate, batch), b = WhyVanilla(candidate, gate, batch);
  if (a.empty() || b.empty()) return {};
  return fmt::format("{}, and {}", a, b);
}

Result<AbReport> RunAb(const Model& model, ThreadPool& pool, std::span<const int32_t> x,
                       std::shared_ptr<const PolicySpec> baseline,
                       std::shared_ptr<const PolicySpec> candidate, const AbOptions& o) {
  const ModelConfig& config = model.config();
  const size_t rows = std::max<size_t>({o.pace.batch, o.quality.batch, 256});
  AbReport report;
  report.baseline.routing = PolicyText(*baseline);
  report.candidate.routing = PolicyText(*candidate);
  ASSIGN_OR_RETURN(auto a,
                   Router::Make(config.gate, std::move(baseline), config.NumMoeLayers(), rows));
  ASSIGN_OR_RETURN(auto b,
                   Router::Make(config.gate, std::move(candidate), config.NumMoeLayers(), rows));
  const std::string why = WhyNoDifference(a->policy(), b->policy(), config.gate, o.pace.batch);
  if (!why.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "'{}' and '{}' cannot differ: {}; choose another candidate",
                     report.baseline.routing, report.candidate.routing, why);
  }
  RETURN_IF_ERROR(CheckPace(model, x.size(), o.pace));
  Router* const routers[] = {a.get(), b.get()};
  ASSIGN_OR_RETURN(QualityReport quality,
                   MeasureQuality(model, pool, x, *a, {routers + 1, 1}, o.quality));
  ASSIGN_OR_RETURN(std::vector<Pace> pace, MeasurePace(model, pool, x, routers, o.pace));
  report.baseline.quality = std::move(quality.baseline);
  report.candidate.quality = std::move(quality.candidates[0]);
  report.baseline.pace = std::move(pace[0]);
  report.candidate.pace = std::move(pace[1]);
  for (AbSide* side : {&report.baseline, &report.candidate}) {
    Count(*side, side->quality.stats, config.gate.top_k);
    Count(*side, side->pace.stats, config.gate.top_k);
    side->distinct_experts = DistinctExpertsMean(side->pace.stats);
    side->expert_bytes_per_step = BytesPerStep(side->pace);
    side->distinct_experts_teacher_forced = DistinctExpertsMean(side->quality.stats);
    side->experts_per_row = ExpertsPerRowMean(side->quality.stats);
  }
  JudgeAb(report, o.min_effect, o.seed);
  return report;
}

}  // namespace carpool
