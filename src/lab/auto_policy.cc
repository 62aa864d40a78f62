#include "lab/auto_policy.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace carpool {
namespace {

constexpr size_t kHold = 8;        // steps a new choice must be wanted for, unless the budget asks
constexpr size_t kRing = 256;      // steps the live fit looks back
constexpr size_t kRefit = 32;      // steps between fits
constexpr double kMinGain = 0.02;  // share of MoE time a policy must save over vanilla
constexpr double kUsableR2 = 0.5;

double Sum(const StepStats& s, uint64_t RoutingStats::*member) {
  double sum = 0.0;
  for (const RoutingStats& layer : s.moe) sum += static_cast<double>(layer.*member);
  return sum;
}

}  // namespace

Result<std::shared_ptr<AutoPolicy>> AutoPolicy::Make(Calibration c, std::optional<double> max_kl,
                                                     const ModelConfig& model) {
  const SweepFingerprint own = MakeFingerprint(model, {}, {});
  for (const char* key : {"model_type", "layers", "hidden", "experts", "top_k"}) {
    const auto recorded = c.fingerprint.value(key, nlohmann::ordered_json());
    if (recorded == own.at(key)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "policy 'auto': the calibration is of a model with {} = {}, this one has {}; "
                     "run carpool sweep on this model",
                     key, recorded.dump(), own.at(key).dump());
  }
  if (max_kl) c.budget.max_kl = *max_kl;
  std::shared_ptr<AutoPolicy> out(new AutoPolicy());
  out->name_ = max_kl ? fmt::format("auto:max_kl={}", *max_kl) : "auto";
  ASSIGN_OR_RETURN(out->vanilla_, ParsePolicy("vanilla"));
  out->current_ = out->wanted_ = out->vanilla_;
  out->fit_ = c.fit;
  std::stable_sort(c.points.begin(), c.points.end(),
                   [](const SweepPoint& a, const SweepPoint& b) { return a.batch < b.batch; });
  std::map<std::string, std::shared_ptr<const PolicySpec>> policies;
  bool any = false;
  for (const SweepPoint& p : c.points) {
    if (out->levels_.empty() || out->levels_.back().batch != p.batch)
      out->levels_.push_back({p.batch, {}});
    auto& choices = out->levels_.back().choices;
    if (p.routing == "vanilla") {
      choices.insert(choices.begin(), {p, out->vanilla_});
    } else if (c.budget.Allows(p)) {
      auto& policy = policies[p.routing];  // one object for all batch sizes
      if (policy == nullptr) {
        ASSIGN_OR_RETURN(policy, ParsePolicy(p.routing));
      }
      choices.push_back({p, policy});
      any = true;
    }
  }
  std::erase_if(out->levels_, [](const Level& l) {
    return l.choices.empty() || l.choices.front().point.routing != "vanilla";
  });
  if (!any || out->levels_.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "policy 'auto': the calibration has no setting with mean KL <= {} and p99 KL "
                     "<= {}; raise max_kl or sweep more settings",
                     c.budget.max_kl, c.budget.max_kl_p99);
  }
  return out;
}

void AutoPolicy::Learn(const StepStats& decode) {
  if (decode.steps < seen_.steps) seen_ = {};  // somebody cleared the sums
  if (decode.steps == seen_.steps || decode.moe.empty()) return;
  const auto n =
      static_cast<double>(decode.steps - seen_.steps) * static_cast<double>(decode.moe.size());
  const auto delta = [&](uint64_t RoutingStats::*m) {
    return (Sum(decode, m) - Sum(seen_, m)) / n;
  };
  const uint64_t ns = decode.router_ns + decode.experts_ns - seen_.router_ns - seen_.experts_ns;
  const LatencySample sample{delta(&RoutingStats::assignments),
                             delta(&RoutingStats::distinct_experts),
                             static_cast<double>(ns) / 1e3 / n};
  seen_ = decode;
  if (recent_.size() < kRing) {
    recent_.push_back(sample);
  } else {
    recent_[next_ % kRing] = sample;
  }
  if (++next_ % kRefit != 0) return;
  const auto fit = FitLatency(recent_);
  if (!fit || fit->r2 < kUsableR2 || fit->b <= 0.0) return;
  fit_ = *fit;
  fit_is_live_ = true;
}

const AutoPolicy::Level* AutoPolicy::LevelFor(size_t rows) const {
  const Level* level = nullptr;
  for (const Level& l : levels_)
    if (l.batch <= rows) level = &l;
  return level;
}

const AutoPolicy::Choice& AutoPolicy::Best(const Level& level) const {
  const auto time = [&](const Choice& c) {
    return fit_.Predict(c.point.assignments, c.point.distinct_experts_free);
  };
  const Choice* best = &level.choices.front();
  const double limit = (1.0 - kMinGain) * time(*best);
  for (const Choice& c : level.choices)
    if (time(c) < std::min(limit, time(*best))) best = &c;
  return *best;
}

void AutoPolicy::Switch(std::shared_ptr<const PolicySpec> to, size_t rows, const char* why) {
  LogInfo("auto: {} -> {} at {} decode rows ({}; us = {:.3f} assignments + {:.3f} T + {:.1f})",
          PolicyText(*current_), PolicyText(*to), rows, why, fit_.a, fit_.b, fit_.c);
  current_ = std::move(to);
  wanted_for_ = 0;
  ++changes_;
}

ChooserReport AutoPolicy::Report() const {
  return {name_, changes_, fit_is_live_, fit_.a, fit_.b, fit_.c};
}

std::shared_ptr<const PolicySpec> AutoPolicy::Choose(size_t rows, const StepStats& decode) {
  Learn(decode);
  const Level* level = LevelFor(rows);
  const std::shared_ptr<const PolicySpec> best = level == nullptr ? vanilla_ : Best(*level).policy;
  if (best == current_) {
    wanted_for_ = 0;
    return current_;
  }
  // Is what runs now within the budget at this batch size? If not, it stops at once.
  const bool allowed =
      current_ == vanilla_ ||
      (level != nullptr && std::any_of(level->choices.begin(), level->choices.end(),
                                       [&](const Choice& c) { return c.policy == current_; }));
  if (!allowed) {
    Switch(best, rows, "the budget does not cover the old one here");
    return current_;
  }
  wanted_for_ = wanted_ == best ? wanted_for_ + 1 : 1;
  wanted_ = best;
  if (wanted_for_ >= kHold) Switch(best, rows, "predicted faster");
  return current_;
}

}  // namespace carpool
