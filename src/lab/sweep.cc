#include "lab/sweep.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "lab/ab.h"
#include "routing/policy_spec.h"

namespace carpool {
namespace {

/// Policies measured together against one vanilla lane: few enough that a mirrored round stays
/// short against the drift it has to cancel, and that an interruption loses little.
constexpr size_t kGroup = 6;

double PerLayerAndStep(const StepStats& stats, uint64_t RoutingStats::*member) {
  double sum = 0.0;
  for (const RoutingStats& layer : stats.moe) sum += static_cast<double>(layer.*member);
  return sum / static_cast<double>(stats.moe.size()) / static_cast<double>(stats.steps);
}

SweepPoint MakePoint(size_t batch, const PolicySpec& policy, const Quality& q,
                     const Quality& vanilla, const Pace& pace, const Pace& vanilla_pace,
                     uint64_t seed) {
  SweepPoint p;
  p.batch = batch;
  p.routing = PolicyText(policy);
  p.tokens = q.tokens;
  p.cross_entropy = q.cross_entropy;
  p.ce_change = q.cross_entropy - vanilla.cross_entropy;
  p.kl_mean = q.kl_mean;
  p.kl_p99 = q.kl_p99;
  p.kl_worst_request = q.kl_worst_request;
  p.top1_agreement = q.top1_agreement;
  p.distinct_experts = DistinctExpertsMean(q.stats);
  p.experts_per_row = ExpertsPerRowMean(q.stats);
  p.assignments = PerLayerAndStep(pace.stats, &RoutingStats::assignments);
  p.distinct_experts_free = DistinctExpertsMean(pace.stats);
  p.bytes_per_step = BytesPerStep(pace);
  p.step_us = pace.step_us_median;
  p.moe_us = pace.moe_us_median;
  p.tokens_per_s = pace.tokens_per_s;
  if (&pace != &vanilla_pace) p.step_ratio = PairedRatio(pace.step_us, vanilla_pace.step_us, seed);
  return p;
}

struct Group {
  size_t batch = 0;
  std::vector<std::shared_ptr<const PolicySpec>> policies;  // without vanilla
  bool wants_vanilla = false;                               // as a point
};

/// What is left to measure.
std::vector<Group> Groups(const SweepOptions& o, const GateSpec& gate, const PolicySpec& vanilla,
                          const std::vector<SweepPoint>& known) {
  std::set<std::pair<size_t, std::string>> have;
  for (const SweepPoint& p : known) have.emplace(p.batch, p.routing);
  std::vector<Group> groups;
  for (size_t b = 0; b < o.batches.size(); ++b) {
    const size_t batch = o.batches[b];
    Group group{batch, {}, have.emplace(batch, PolicyText(vanilla)).second};
    for (const auto& policy : o.policies[b]) {
      if (!WhyNoDifference(vanilla, *policy, gate, batch).empty()) continue;
      if (!have.emplace(batch, PolicyText(*policy)).second) continue;
      group.policies.push_back(policy);
      if (group.policies.size() < kGroup) continue;
      groups.push_back(std::move(group));
      group = {batch, {}, false};
    }
    if (!group.policies.empty() || group.wants_vanilla) groups.push_back(std::move(group));
  }
  return groups;
}

Result<std::vector<SweepPoint>> Measure(const Model& model, ThreadPool& pool,
                                        std::span<const int32_t> x, const SweepOptions& o,
                                        std::shared_ptr<const PolicySpec> vanilla,
                                        const Group& group) {
  const ModelConfig& config = model.config();
  std::vector<std::shared_ptr<const PolicySpec>> specs = group.policies;
  specs.insert(specs.begin(), std::move(vanilla));
  std::vector<std::unique_ptr<Router>> routers;
  std::vector<Router*> pointers;
  for (const auto& spec : specs) {
    ASSIGN_OR_RETURN(auto router, Router::Make(config.gate, spec, config.NumMoeLayers(),
                                               std::max<size_t>(group.batch, 256)));
    routers.push_back(std::move(router));
    pointers.push_back(routers.back().get());
  }
  PerplexityOptions quality;
  quality.batch = group.batch;
  quality.context = o.context;
  quality.activations = o.pace.activations;
  ASSIGN_OR_RETURN(const size_t windows, PerplexityWindows(x.size(), quality));
  quality.windows = std::clamp<size_t>(o.tokens / (group.batch * o.context), 1, windows);
  PaceOptions pace_options = o.pace;
  pace_options.batch = group.batch;
  pace_options.seed = o.seed;
  RETURN_IF_ERROR(CheckPace(model, x.size(), pace_options));
  ASSIGN_OR_RETURN(const QualityReport q,
                   MeasureQuality(model, pool, x, *pointers[0],
                                  std::span<Router* const>(pointers).subspan(1), quality));
  ASSIGN_OR_RETURN(const std::vector<Pace> paces,
                   MeasurePace(model, pool, x, pointers, pace_options));
  std::vector<SweepPoint> points;
  for (size_t i = group.wants_vanilla ? 0 : 1; i < specs.size(); ++i) {
    points.push_back(MakePoint(group.batch, *specs[i], i == 0 ? q.baseline : q.candidates[i - 1],
                               q.baseline, paces[i], paces[0], o.seed));
  }
  return points;
}

}  // namespace

std::vector<std::string> DefaultSweepPolicies(const GateSpec& gate, size_t batch) {
  std::vector<std::string> policies;
  const size_t k = gate.top_k;
  for (const char* knob : {"oea:k0=", "topk:k="}) {
    for (size_t own = k > 2 ? k - 2 : 1; own >= 1; --own) {
      if (own == 1 && k > 2) break;
      policies.push_back(fmt::format("{}{}", knob, own));
    }
  }
  // Budgets as shares of what independent rows would choose, so that every batch size gets a curve.
  double missed = 1.0;
  for (size_t b = 0; b < batch; ++b)
    missed *= 1.0 - static_cast<double>(k) / static_cast<double>(gate.num_experts);
  const double chosen = static_cast<double>(gate.num_experts) * (1.0 - missed);
  for (const char* name : {"lynx", "cap", "xshare"}) {
    for (const double share : {0.3, 0.45, 0.6, 0.75}) {
      const auto budget = static_cast<size_t>(share * chosen + 0.5);
      if (budget >= k) policies.push_back(fmt::format("{}:budget={}", name, budget));
    }
  }
  return policies;
}

Result<std::vector<SweepPoint>> RunSweep(const Model& model, ThreadPool& pool,
                                         std::span<const int32_t> x, const SweepOptions& o,
                                         std::vector<SweepPoint> known) {
  ASSIGN_OR_RETURN(const auto vanilla, ParsePolicy("vanilla"));
  const ModelConfig& config = model.config();
  CARPOOL_CHECK_EQ(o.policies.size(), o.batches.size());
  for (const auto& list : o.policies) {
    for (const auto& policy : list) {  // knobs this gate cannot have, before anything runs
      ASSIGN_OR_RETURN([[maybe_unused]] const auto router,
                       Router::Make(config.gate, policy, config.NumMoeLayers(), 1));
    }
  }
  const std::vector<Group> groups = Groups(o, model.config().gate, *vanilla, known);
  std::vector<SweepPoint> points = std::move(known);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (o.progress) o.progress(g, groups.size());
    ASSIGN_OR_RETURN(const auto measured, Measure(model, pool, x, o, vanilla, groups[g]));
    if (o.on_points) RETURN_IF_ERROR(o.on_points(measured));
    points.insert(points.end(), measured.begin(), measured.end());
  }
  // Points of an earlier run that this one did not ask for do not belong to its answer.
  std::erase_if(points, [&](const SweepPoint& p) {
    const auto at = std::find(o.batches.begin(), o.batches.end(), p.batch);
    if (at == o.batches.end()) return true;
    const auto& list = o.policies[static_cast<size_t>(at - o.batches.begin())];
    return p.routing != "vanilla" && std::none_of(list.begin(), list.end(), [&](const auto& spec) {
             return PolicyText(*spec) == p.routing;
           });
  });
  std::stable_sort(points.begin(), points.end(), [](const SweepPoint& a, const SweepPoint& b) {
    return std::pair(a.batch, a.routing != "vanilla") < std::pair(b.batch, b.routing != "vanilla");
  });
  return points;
}

std::vector<SweepPoint> ParetoFront(const std::vector<SweepPoint>& points) {
  std::vector<SweepPoint> front;
  for (const SweepPoint& p : points) {
    const bool beaten = std::any_of(points.begin(), points.end(), [&](const SweepPoint& q) {
      return q.batch == p.batch && q.distinct_experts <= p.distinct_experts &&
             q.cross_entropy <= p.cross_entropy &&
             (q.distinct_experts < p.distinct_experts || q.cross_entropy < p.cross_entropy);
    });
    if (!beaten) front.push_back(p);
  }
  std::stable_sort(front.begin(), front.end(), [](const SweepPoint& a, const SweepPoint& b) {
    return std::pair(a.batch, a.distinct_experts) < std::pair(b.batch, b.distinct_experts);
  });
  return front;
}

std::vector<SweepPoint> Recommend(const std::vector<SweepPoint>& points,
                                  const QualityBudget& budget) {
  std::vector<SweepPoint> chosen;
  for (const SweepPoint& p : points) {
    if (chosen.empty() || chosen.back().batch != p.batch) {
      chosen.push_back(p);  // vanilla comes first
    } else if (budget.Allows(p) && p.step_ratio.high < 1.0 &&
               p.step_ratio.value < chosen.back().step_ratio.value) {
      chosen.back() = p;
    }
  }
  return chosen;
}

Result<LatencyFit> FitSweep(const std::vector<SweepPoint>& points) {
  std::vector<LatencySample> samples;
  for (const SweepPoint& p : points)
    samples.push_back({p.assignments, p.distinct_experts_free, p.moe_us});
  return FitLatency(samples);
}

std::string PolicyFamily(const std::string& routing) {
  const std::string name = routing.substr(0, routing.find(':'));
  return routing.find('/') == std::string::npos ? name : name + " per layer";
}

}  // namespace carpool
