#include "routing/reference.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"

namespace carpool {
namespace {

constexpr double kInf = __builtin_inf();
using Ids = std::vector<int32_t>;
using Set = std::set<int32_t>;

double Activate(GateActivation activation, double x) {
  switch (activation) {
    case GateActivation::kSigmoid:
    case GateActivation::kSigmoidTanh:
      return 1 / (1 + std::exp(-x));
    case GateActivation::kSqrtSoftplus:
      return std::sqrt(x > 20 ? x : std::log1p(std::exp(x)));
    case GateActivation::kSoftmax:
    case GateActivation::kIdentity:
      break;
  }
  return x;
}

/// True when a ranks above b: larger, NaN lowest.
bool Above(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a > b; }

double GroupValue(GroupScore kind, std::vector<double> choices) {
  for (double& c : choices) c = std::isnan(c) ? -kInf : c;
  std::sort(choices.rbegin(), choices.rend());
  if (kind == GroupScore::kMax) return choices[0];
  if (kind == GroupScore::kTop2Sum) return choices[0] + choices[1];
  for (const double c : choices) {
    if (c < choices[0]) return choices[0] + c;
  }
  return choices[0] - kInf;
}

Ids Best(const ReferenceRow& row, size_t n, const Set* within = nullptr) {
  Ids out;
  for (const int32_t e : row.ranks) {
    if (out.size() == n) break;
    if (within == nullptr || within->count(e) > 0) out.push_back(e);
  }
  return out;
}

/// A set of ids in the row's rank order.
Ids Ordered(const ReferenceRow& row, const Set& ids) { return Best(row, ids.size(), &ids); }

double Score(const ReferenceRow& row, int32_t e) { return row.scores[static_cast<size_t>(e)]; }
double Choice(const ReferenceRow& row, int32_t e) { return row.choices[static_cast<size_t>(e)]; }

/// One step as policies see it.
struct Step {
  const ReferenceKnobs& knobs;
  const GateSpec& gate;
  const std::vector<ReferenceRow>& rows;
  std::vector<size_t> active;
  Set free;  // experts of prefill and exact rows
};

Ids Vanilla(const Step& s, size_t r) { return Best(s.rows[r], s.gate.top_k); }

Ids OwnExperts(const Step& s, size_t r) {
  const Ids vanilla = Vanilla(s, r);
  double total = 0, sum = 0;
  for (const int32_t e : vanilla) total += Score(s.rows[r], e);
  Ids own;
  for (const int32_t e : vanilla) {
    if (own.size() == s.knobs.k0) break;
    own.push_back(e);
    sum += Score(s.rows[r], e);
    if (s.knobs.p < 1 && sum >= s.knobs.p * total) break;
  }
  return own;
}

void Oea(const Step& s, std::vector<Ids>& out) {
  Set shared = s.free;
  for (const size_t r : s.active) {
    for (const int32_t e : OwnExperts(s, r)) shared.insert(e);
  }
  const size_t kmax = s.knobs.kmax != 0 ? s.knobs.kmax : s.gate.top_k;
  const size_t maxp = s.knobs.maxp != 0 ? s.knobs.maxp : s.gate.num_experts;
  for (const size_t r : s.active) {
    Ids set;
    for (const int32_t e : Best(s.rows[r], maxp)) {
      if (shared.count(e) > 0 && set.size() < kmax) set.push_back(e);
    }
    out[r] = set;
  }
}

void Near(const Step& s, std::vector<Ids>& out) {
  const bool relative = s.gate.activation == GateActivation::kSoftmax;
  auto bounds = [&](size_t r) {
    const double theta = Choice(s.rows[r], Vanilla(s, r).back());
    // Rounded as the fast path rounds: these are fp32 comparisons.
    const double d = s.knobs.delta;
    const double lower = relative ? theta + std::abs(theta) * std::expm1(-d) : theta - d;
    const double upper = relative ? theta + std::abs(theta) * std::expm1(d) : theta + d;
    return std::pair<double, double>(static_cast<float>(lower), static_cast<float>(upper));
  };
  Set shared = s.free;
  for (const size_t r : s.active) {
    for (const int32_t e : Vanilla(s, r)) {
      if (Choice(s.rows[r], e) > bounds(r).second) shared.insert(e);
    }
  }
  for (const size_t r : s.active) {
    const Ids vanilla = Vanilla(s, r);
    if (std::isnan(Choice(s.rows[r], vanilla.back()))) continue;
    Ids in_shared, others;
    for (const int32_t e : s.rows[r].ranks) {
      if (!(Choice(s.rows[r], e) >= bounds(r).first)) continue;
      (shared.count(e) > 0 ? in_shared : others).push_back(e);
    }
    Set set;
    if (s.knobs.delta == 0) {
      set.insert(vanilla.begin(), vanilla.end());
      for (const int32_t e : in_shared) {
        if (set.size() < s.gate.top_k + s.knobs.extra) set.insert(e);
      }
    } else {
      set.insert(vanilla[0]);
      for (const int32_t e : in_shared) {
        if (set.size() < s.gate.top_k + s.knobs.extra) set.insert(e);
      }
      for (const int32_t e : others) {
        if (set.size() < s.gate.top_k) set.insert(e);
      }
    }
    out[r] = Ordered(s.rows[r], set);
  }
}

void Ser(const Step& s, std::vector<Ids>& out) {
  for (const size_t r : s.active) {
    const Ids vanilla = Vanilla(s, r);
    double best = -kInf;
    for (const int32_t e : vanilla) best = std::max(best, Score(s.rows[r], e));
    Ids set;
    for (size_t j = 0; j < vanilla.size(); ++j) {
      const bool near = static_cast<float>(Score(s.rows[r], vanilla[j])) >=
                        static_cast<float>(s.knobs.t) * static_cast<float>(best);
      if (j < s.knobs.kmin || s.knobs.t == 0 || near) set.push_back(vanilla[j]);
    }
    out[r] = set;
  }
}

void Budgeted(const Step& s, bool count_first, std::vector<Ids>& out) {
  std::map<int32_t, std::pair<size_t, double>> demand;
  for (const size_t r : s.active) {
    for (const int32_t e : Vanilla(s, r)) {
      if (s.free.count(e) > 0) continue;
      auto& [rows, mass] = demand[e];
      ++rows;
      mass += Score(s.rows[r], e);
    }
  }
  Ids order;
  for (const auto& [e, d] : demand) order.push_back(e);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (count_first && demand[a].first != demand[b].first) return demand[a].first > demand[b].first;
    return demand[a].second > demand[b].second;
  });
  Set stays = s.free;
  for (size_t i = 0; i < std::min(order.size(), s.knobs.budget); ++i) stays.insert(order[i]);
  for (const size_t r : s.active) {
    Ids set;
    for (const int32_t e : Vanilla(s, r)) {
      if (set.empty() || stays.count(e) > 0) set.push_back(e);
    }
    out[r] = set;
  }
}

void Xshare(const Step& s, std::vector<Ids>& out) {
  Set shared = s.free;
  size_t size = 0;
  for (const size_t r : s.active) {
    for (const int32_t e : Best(s.rows[r], s.knobs.warm)) size += shared.insert(e).second;
  }
  std::vector<double> mass(s.gate.num_experts);
  for (const size_t r : s.active) {
    for (const int32_t e : s.rows[r].ranks) mass[static_cast<size_t>(e)] += Score(s.rows[r], e);
  }
  Ids order(s.gate.num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
  });
  for (const int32_t e : order) {
    if (size < s.knobs.budget) size += shared.insert(e).second;
  }
  for (const size_t r : s.active) {
    Set set = shared;
    set.insert(s.rows[r].ranks[0]);
    out[r] = Best(s.rows[r], s.gate.top_k, &set);
  }
}

}  // namespace

ReferenceRow ReferenceScore(const GateSpec& gate, std::span<const float> logits,
                            std::span<const float> bias) {
  const size_t n = gate.num_experts;
  ReferenceRow row;
  double max = -kInf, sum = 0;
  for (const float x : logits) max = std::max(max, std::isnan(x) ? -kInf : static_cast<double>(x));
  for (size_t e = 0; e < n; ++e) {
    const auto x = static_cast<double>(logits[e]);
    row.scores.push_back(gate.activation == GateActivation::kSoftmax
                             ? std::exp(x == max ? 0.0 : x - max)
                             : Activate(gate.activation, x));
    if (!std::isnan(row.scores.back())) sum += row.scores.back();
  }
  if (gate.activation == GateActivation::kSoftmax) {
    for (double& score : row.scores) score /= sum;
  }
  for (size_t e = 0; e < n; ++e)
    row.choices.push_back(row.scores[e] + (bias.empty() ? 0.0 : static_cast<double>(bias[e])));
  const size_t per_group = n / gate.num_groups;
  std::vector<size_t> groups(gate.num_groups);
  std::iota(groups.begin(), groups.end(), size_t{0});
  if (gate.groups_kept < gate.num_groups) {
    std::vector<double> value;
    for (size_t g = 0; g < gate.num_groups; ++g) {
      const auto first = row.choices.begin() + static_cast<ptrdiff_t>(g * per_group);
      value.push_back(
          GroupValue(gate.group_score, {first, first + static_cast<ptrdiff_t>(per_group)}));
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [&](size_t a, size_t b) { return Above(value[a], value[b]); });
    groups.resize(gate.groups_kept);
  }
  row.kept.assign(n, false);
  for (const size_t g : groups) {
    for (size_t e = g * per_group; e < (g + 1) * per_group; ++e) row.kept[e] = true;
  }
  for (size_t e = 0; e < n; ++e) {
    if (row.kept[e]) row.ranks.push_back(static_cast<int32_t>(e));
  }
  std::stable_sort(row.ranks.begin(), row.ranks.end(),
                   [&](int32_t a, int32_t b) { return Above(Choice(row, a), Choice(row, b)); });
  return row;
}

std::vector<double> ReferenceWeigh(const GateSpec& gate, const ReferenceRow& row,
                                   const std::vector<int32_t>& ids) {
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t e : ids) {
    weights.push_back(Score(row, e));
    sum += weights.back();
  }
  for (double& w : weights) {
    if (gate.renormalize == Renormalize::kDivideBySum)
      w /= sum + static_cast<double>(gate.renorm_epsilon);
    w *= static_cast<double>(gate.scale);
  }
  return weights;
}

std::vector<std::vector<int32_t>> ReferenceSelect(const std::string& policy,
                                                  const ReferenceKnobs& knobs, const GateSpec& gate,
                                                  const std::vector<ReferenceRow>& rows,
                                                  std::span<const RowInfo> infos) {
  Step step{knobs, gate, rows, {}, {}};
  std::vector<Ids> out(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!infos[r].valid) continue;
    out[r] = Vanilla(step, r);
    if (infos[r].phase == RowPhase::kDecode && !infos[r].exact) {
      step.active.push_back(r);
    } else if (knobs.ride) {
      step.free.insert(out[r].begin(), out[r].end());
    }
  }
  if (policy == "topk") {
    for (const size_t r : step.active) out[r].resize(knobs.k);
  } else if (policy == "oea") {
    Oea(step, out);
  } else if (policy == "near") {
    Near(step, out);
  } else if (policy == "ser") {
    Ser(step, out);
  } else if (policy == "lynx" || policy == "cap") {
    Budgeted(step, policy == "lynx", out);
  } else if (policy == "xshare") {
    Xshare(step, out);
  } else {
    CARPOOL_CHECK(policy == "vanilla");
  }
  return out;
}

}  // namespace carpool
