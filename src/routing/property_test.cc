// Random cases of everything a router promises, against the readable reference.
// CARPOOL_PROPERTY_CASES sets the number of cases (default 100,000; the long target runs
// 10,000,000).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>

#include "base/aligned.h"
#include "routing/gate_math.h"
#include "routing/rank.h"
#include "routing/reference.h"
#include "routing/test_inputs.h"

namespace carpool {
namespace {

size_t NumCases() {
  const char* text = std::getenv("CARPOOL_PROPERTY_CASES");
  return text == nullptr ? 100000 : static_cast<size_t>(std::strtoull(text, nullptr, 10));
}

struct Case {
  GateSpec gate;
  std::string name;  // of the policy
  ReferenceKnobs knobs;
  std::string policy;
  TestStep step;
};

size_t Between(std::mt19937_64& rng, size_t low, size_t high) {
  return low + rng() % (high - low + 1);
}

GateSpec RandomGate(std::mt19937_64& rng) {
  constexpr GateActivation kAll[] = {GateActivation::kSigmoid, GateActivation::kSoftmax,
                                     GateActivation::kSqrtSoftplus};
  const size_t groups = rng() % 3 == 0 ? Between(rng, 2, 4) : 1;
  const size_t per_group = Between(rng, groups > 1 ? 2 : 1, 40 / groups);
  const size_t kept = Between(rng, 1, groups);
  const size_t k = Between(rng, 1, std::min<size_t>(kept * per_group, 9));
  GateSpec gate = TestGate(groups * per_group, k, groups, kept, kAll[rng() % 3], rng() % 2 == 0);
  gate.scale = rng() % 2 == 0 ? 1.0f : 2.5f;
  if (rng() % 4 == 0) gate.renormalize = Renormalize::kNone;
  if (rng() % 4 == 0)
    gate.group_score = rng() % 2 == 0 ? GroupScore::kMax : GroupScore::kTop2Strict;
  return gate;
}

void ChoosePolicy(Case& c, std::mt19937_64& rng) {
  const size_t k = c.gate.top_k, n = c.gate.num_experts;
  ReferenceKnobs& q = c.knobs;
  switch (rng() % 8) {
    case 0:
      c.name = "vanilla";
      c.policy = "vanilla";
      break;
    case 1:
      c.name = "topk";
      q.k = Between(rng, 1, k);
      c.policy = fmt::format("topk:k={}", q.k);
      return;
    case 2:
    case 3:
      c.name = "oea";
      q.k0 = Between(rng, 1, k);
      c.policy = fmt::format("oea:k0={}", q.k0);
      if (rng() % 3 == 0)
        c.policy += fmt::format(",kmax={}", q.kmax = Between(rng, q.k0, std::min(n, k + 3)));
      if (rng() % 3 == 0) c.policy += fmt::format(",maxp={}", q.maxp = Between(rng, q.k0, n));
      break;
    case 4:
      c.name = "near";
      q.delta = rng() % 4 == 0 ? 0 : static_cast<double>(Between(rng, 1, 40)) / 64;
      q.extra = Between(rng, 0, std::min<size_t>(n - k, 2));
      c.policy = fmt::format("near:delta={},extra={}", q.delta, q.extra);
      break;
    case 5:
      c.name = "ser";
      q.kmin = Between(rng, 1, k);
      q.t = static_cast<double>(Between(rng, 0, 64)) / 64;
      c.policy = fmt::format("ser:kmin={},t={}", q.kmin, q.t);
      return;
    case 6:
      c.name = rng() % 2 == 0 ? "lynx" : "cap";
      q.budget = Between(rng, 1, n);
      c.policy = fmt::format("{}:budget={}", c.name, q.budget);
      break;
    default:
      c.name = "xshare";
      q.budget = Between(rng, 1, n);
      q.warm = Between(rng, 0, k);
      c.policy = fmt::format("xshare:budget={},warm={}", q.budget, q.warm);
  }
  if (c.name != "vanilla" && rng() % 4 == 0) {
    q.ride = false;
    c.policy += ",ride=0";
  }
}

Case RandomCase(std::mt19937_64& rng) {
  Case c;
  c.gate = RandomGate(rng);
  ChoosePolicy(c, rng);
  const auto kind = static_cast<LogitKind>(rng() % 4);
  c.step = RandomStep(c.gate, Between(rng, 1, 6), kind, rng, rng() % 2 == 0);
  return c;
}

/// The reference's rows with the gate's own fp32 scores, so that selection can be compared exactly.
std::vector<ReferenceRow> ScoredRows(const Case& c) {
  std::vector<ReferenceRow> rows;
  const size_t padded = RoundUp(c.gate.num_experts, kRowBlock);
  AlignedBuffer<float> logit(padded), score(padded), choice(padded);
  AlignedBuffer<uint32_t> key(padded);
  for (size_t r = 0; r < c.step.rows.size(); ++r) {
    ScoreRow(c.gate, c.step.View().Row(r), c.step.bias.empty() ? nullptr : c.step.bias.data(),
             {logit.data(), score.data(), choice.data(), key.data(), nullptr});
    ReferenceRow row;
    for (size_t e = 0; e < c.gate.num_experts; ++e) {
      row.scores.push_back(static_cast<double>(score[e]));
      row.choices.push_back(static_cast<double>(choice[e]));
      if (key[e] != kIneligibleKey) row.ranks.push_back(static_cast<int32_t>(e));
    }
    std::stable_sort(row.ranks.begin(), row.ranks.end(), [&](int32_t a, int32_t b) {
      return key[static_cast<size_t>(a)] > key[static_cast<size_t>(b)];
    });
    rows.push_back(std::move(row));
  }
  return rows;
}

bool Finite(const TestStep& step) {
  return std::all_of(step.logits.begin(), step.logits.end(),
                     [](float x) { return std::isfinite(x) && std::abs(x) < 50; });
}

/// Sums of scores decide between experts: the reference's doubles and the router's fixed point may
/// order near ties differently, so compare only where masses cannot be that close.
bool ComparesMass(const Case& c) {
  return c.name == "lynx" || c.name == "cap" || c.name == "xshare";
}

void CheckSets(const Case& c, const TestResult& got) {
  if (!ComparesMass(c) || Finite(c.step)) {
    EXPECT_EQ(got.ids, ReferenceSelect(c.name, c.knobs, c.gate, ScoredRows(c), c.step.rows));
  }
  for (size_t r = 0; r < c.step.rows.size(); ++r) {
    const auto& ids = got.ids[r];
    ASSERT_EQ(ids.empty(), !c.step.rows[r].valid);
    EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), ids.size());
    for (const int32_t id : ids)
      EXPECT_TRUE(id >= 0 && id < static_cast<int32_t>(c.gate.num_experts));
  }
}

void CheckWeights(const Case& c, const TestResult& got) {
  if (!Finite(c.step)) return;
  for (size_t r = 0; r < c.step.rows.size(); ++r) {
    if (!c.step.rows[r].valid) continue;
    const float sum = std::accumulate(got.weights[r].begin(), got.weights[r].end(), 0.0f);
    if (c.gate.renormalize == Renormalize::kDivideBySum) {
      EXPECT_NEAR(sum, c.gate.scale, 1e-5);
    }
    const ReferenceRow row = ReferenceScore(c.gate, c.step.View().RowSpan(r), c.step.bias);
    const auto want = ReferenceWeigh(c.gate, row, got.ids[r]);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got.weights[r][i], want[i], 2e-6 * std::max(1.0, std::abs(want[i])));
  }
}

bool SameRow(const TestResult& a, size_t ra, const TestResult& b, size_t rb) {
  const auto same_bits = [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  };
  return a.ids[ra] == b.ids[rb] &&
         std::equal(a.weights[ra].begin(), a.weights[ra].end(), b.weights[rb].begin(),
                    b.weights[rb].end(), same_bits);
}

void CheckInvariances(const Case& c, const TestResult& got, std::mt19937_64& rng) {
  const size_t rows = c.step.rows.size();
  // One padding row more changes nothing, wherever it stands.
  Case padded = c;
  const size_t at = Between(rng, 0, rows);
  RowInfo hole;
  hole.valid = false;
  padded.step.rows.insert(padded.step.rows.begin() + static_cast<ptrdiff_t>(at), hole);
  padded.step.logits.insert(padded.step.logits.begin() + static_cast<ptrdiff_t>(at * c.step.n),
                            c.step.n, __builtin_nanf(""));
  const TestResult with_hole = RouteOnce(c.gate, c.policy, padded.step);
  for (size_t r = 0; r < rows; ++r) EXPECT_TRUE(SameRow(got, r, with_hole, r + (r >= at)));
  // A row that opts out is vanilla, and vanilla alone is vanilla in the batch.
  Case opted = c;
  const size_t one = Between(rng, 0, rows - 1);
  opted.step.rows[one].exact = true;
  TestStep single{c.step.n,
                  {c.step.View().Row(one), c.step.View().Row(one) + c.step.n},
                  c.step.bias,
                  {c.step.rows[one]}};
  EXPECT_TRUE(SameRow(RouteOnce(c.gate, c.policy, opted.step), one,
                      RouteOnce(c.gate, "vanilla", single), 0));
}

/// Renaming the experts renames the result, where there are no ties for ids to break.
void CheckExpertNames(const Case& c, const TestResult& got, std::mt19937_64& rng) {
  if (c.gate.num_groups > 1 || !c.step.bias.empty() || ComparesMass(c) ||
      c.gate.activation != GateActivation::kSigmoid)
    return;
  std::vector<size_t> name(c.step.n);
  std::iota(name.begin(), name.end(), size_t{0});
  std::shuffle(name.begin(), name.end(), rng);
  TestStep renamed = c.step;
  for (size_t r = 0; r < c.step.rows.size(); ++r) {
    std::vector<float> sorted(c.step.View().Row(r), c.step.View().Row(r) + c.step.n);
    std::sort(sorted.begin(), sorted.end());
    for (size_t e = 0; e < c.step.n; ++e) {
      if (!(std::abs(sorted[e]) < 6) || (e > 0 && sorted[e] - sorted[e - 1] < 1e-3f)) return;
      renamed.logits[r * c.step.n + name[e]] = c.step.View().Row(r)[e];
    }
  }
  const TestResult other = RouteOnce(c.gate, c.policy, renamed);
  for (size_t r = 0; r < c.step.rows.size(); ++r) {
    ASSERT_EQ(got.ids[r].size(), other.ids[r].size());
    for (size_t i = 0; i < got.ids[r].size(); ++i) {
      EXPECT_EQ(static_cast<int32_t>(name[static_cast<size_t>(got.ids[r][i])]), other.ids[r][i]);
    }
  }
}

TEST(RoutingPropertyTest, RandomCasesKeepEveryPromise) {
  std::mt19937_64 rng(20260101);
  const size_t cases = NumCases();
  for (size_t i = 0; i < cases; ++i) {
    const Case c = RandomCase(rng);
    SCOPED_TRACE(fmt::format("case {}: {} N={} k={} G={} kg={} act={} rows={}", i, c.policy,
                             c.gate.num_experts, c.gate.top_k, c.gate.num_groups,
                             c.gate.groups_kept, Name(c.gate.activation), c.step.rows.size()));
    const TestResult got = RouteOnce(c.gate, c.policy, c.step);
    CheckSets(c, got);
    CheckWeights(c, got);
    if (i % 4 == 0) CheckInvariances(c, got, rng);
    if (i % 4 == 1) CheckExpertNames(c, got, rng);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace carpool
