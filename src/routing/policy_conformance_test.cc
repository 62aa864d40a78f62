// Every policy of THE LIST keeps the contract of routing/policy.h and docs/ROUTING.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "routing/policy.h"
#include "routing/test_inputs.h"

namespace carpool {
namespace {

/// Settings beyond the kind's own example that reach its other branches; they fit k >= 2 and N >= k
/// + 2.
const std::multimap<std::string_view, std::string> kMore = {
    {"oea", "oea:k0=1,p=0.5"},
    {"oea", "oea:k0=1,kmax=3"},
    {"oea", "oea:k0=2,maxp=3"},
    {"oea", "oea:k0=1,ride=0"},
    {"near", "near:delta=0.3,extra=2"},
    {"near", "near:delta=0,extra=2"},
    {"near", "near:delta=50"},
    {"xshare", "xshare:budget=1,warm=0"},
    {"xshare", "xshare:budget=3,warm=2"},
    {"lynx", "lynx:budget=1"},
    {"cap", "cap:budget=2,ride=0"},
    {"ser", "ser:kmin=1,t=1"},
};

const std::vector<GateSpec> kGates = {
    TestGate(1, 1),
    TestGate(2, 1, 1, 1, GateActivation::kSoftmax, false),
    TestGate(7, 3),
    TestGate(16, 4, 4, 2),
    TestGate(60, 4, 1, 1, GateActivation::kSoftmax, false),
    TestGate(128, 8, 1, 1, GateActivation::kSoftmax, false),
    TestGate(256, 8, 8, 4),
    TestGate(256, 8),
    TestGate(384, 6, 1, 1, GateActivation::kSqrtSoftplus),
    TestGate(1024, 22),
};

class PolicyConformanceTest : public ::testing::TestWithParam<const PolicyKind*> {
 protected:
  std::vector<std::string> Settings(const GateSpec& gate) const {
    std::vector<std::string> all = {GetParam()->example(gate), GetParam()->neutral(gate)};
    if (gate.top_k >= 2 && gate.num_experts >= gate.top_k + 2) {
      const auto [first, last] = kMore.equal_range(GetParam()->name);
      for (auto i = first; i != last; ++i) all.push_back(i->second);
    }
    return all;
  }
  /// Calls check(gate, policy text, step) over gates, settings, row counts and kinds of logits.
  template <typename Check>
  void ForAll(Check check, std::vector<size_t> row_counts = {1, 2, 5, 33}) {
    std::mt19937_64 rng(7);
    for (const GateSpec& gate : kGates) {
      for (const std::string& policy : Settings(gate)) {
        for (const size_t rows : row_counts) {
          for (const LogitKind kind : {LogitKind::kNormal, LogitKind::kPermutation,
                                       LogitKind::kTies, LogitKind::kExtreme}) {
            const TestStep step = RandomStep(gate, rows, kind, rng, rows > 1);
            SCOPED_TRACE(fmt::format("{} N={} k={} G={} rows={} kind={}", policy, gate.num_experts,
                                     gate.top_k, gate.num_groups, rows, static_cast<int>(kind)));
            check(gate, policy, step);
            if (HasFatalFailure() || HasNonfatalFailure()) return;
          }
        }
      }
    }
  }
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void ExpectSameRow(const TestResult& a, size_t ra, const TestResult& b, size_t rb) {
  EXPECT_EQ(a.ids[ra], b.ids[rb]);
  EXPECT_TRUE(SameBits(a.weights[ra], b.weights[rb]));
}

TEST_P(PolicyConformanceTest, IdsAreDistinctInRangeOrderedAndRepeatable) {
  ForAll([](const GateSpec& gate, const std::string& policy, const TestStep& step) {
    const TestResult got = RouteOnce(gate, policy, step);
    const TestResult again = RouteOnce(gate, policy, step);
    GateSpec all = gate;  // full ranking of every row, for the order
    all.top_k = gate.num_experts / gate.num_groups * gate.groups_kept;
    const TestResult ranking = RouteOnce(all, "vanilla", step);
    for (size_t r = 0; r < step.rows.size(); ++r) {
      ExpectSameRow(got, r, again, r);
      const auto& ids = got.ids[r];
      if (!step.rows[r].valid) {
        EXPECT_TRUE(ids.empty());
        continue;
      }
      ASSERT_GE(ids.size(), 1u);
      EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), ids.size());
      EXPECT_GE(*std::min_element(ids.begin(), ids.end()), 0);
      EXPECT_LT(*std::max_element(ids.begin(), ids.end()), static_cast<int32_t>(gate.num_experts));
      // In rank order, hence also inside the kept groups; the row's first is always there.
      const auto& rank = ranking.ids[r];
      EXPECT_EQ(ids[0], rank[0]);
      size_t at = 0;
      for (const int32_t id : ids) {
        while (at < rank.size() && rank[at] != id) ++at;
        ASSERT_LT(at, rank.size()) << "id " << id << " is out of order or outside the kept groups";
      }
    }
  });
}

TEST_P(PolicyConformanceTest, ExactAndPrefillRowsAreVanillaAndPaddingIsInvisible) {
  ForAll([](const GateSpec& gate, const std::string& policy, const TestStep& step) {
    const TestResult got = RouteOnce(gate, policy, step);
    const TestResult vanilla = RouteOnce(gate, "vanilla", step);
    TestStep dense = step;
    dense.rows.clear();
    dense.logits.clear();
    std::vector<size_t> source;
    for (size_t r = 0; r < step.rows.size(); ++r) {
      if (!step.rows[r].valid) continue;
      source.push_back(r);
      dense.rows.push_back(step.rows[r]);
      dense.logits.insert(dense.logits.end(), step.View().Row(r), step.View().Row(r) + step.n);
    }
    const TestResult without = RouteOnce(gate, policy, dense);
    for (size_t i = 0; i < source.size(); ++i) {
      ExpectSameRow(got, source[i], without, i);
      const RowInfo& row = dense.rows[i];
      if (row.exact || row.phase == RowPhase::kPrefill)
        ExpectSameRow(got, source[i], vanilla, source[i]);
    }
    EXPECT_EQ(got.stats.distinct_experts, without.stats.distinct_experts);
    EXPECT_EQ(got.stats.rows, source.size());
  });
}

TEST_P(PolicyConformanceTest, NeutralSettingIsVanillaBitForBit) {
  ForAll([](const GateSpec& gate, const std::string&, const TestStep& step) {
    const TestResult got = RouteOnce(gate, GetParam()->neutral(gate), step);
    const TestResult vanilla = RouteOnce(gate, "vanilla", step);
    for (size_t r = 0; r < step.rows.size(); ++r) ExpectSameRow(got, r, vanilla, r);
    EXPECT_EQ(got.stats.changed_rows, 0u);
    EXPECT_EQ(got.stats.dropped, 0u);
    EXPECT_EQ(got.stats.piggybacks, 0u);
  });
}

TEST_P(PolicyConformanceTest, RowOrderDoesNotMatter) {
  ForAll([](const GateSpec& gate, const std::string& policy, const TestStep& step) {
    std::vector<size_t> order(step.rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937_64 rng(step.rows.size());
    std::shuffle(order.begin(), order.end(), rng);
    TestStep shuffled = step;
    for (size_t i = 0; i < order.size(); ++i) {
      shuffled.rows[i] = step.rows[order[i]];
      std::copy_n(step.View().Row(order[i]), step.n, shuffled.logits.data() + i * step.n);
    }
    const TestResult a = RouteOnce(gate, policy, step), b = RouteOnce(gate, policy, shuffled);
    for (size_t i = 0; i < order.size(); ++i) ExpectSameRow(a, order[i], b, i);
  });
}

TEST_P(PolicyConformanceTest, RowsThatOptOutGetTheirVanillaSet) {
  ForAll([](const GateSpec& gate, const std::string& policy, const TestStep& step) {
    TestStep opted = step;
    for (size_t r = 0; r < opted.rows.size(); r += 2) opted.rows[r].exact = true;
    const TestResult got = RouteOnce(gate, policy, opted);
    const TestResult vanilla = RouteOnce(gate, "vanilla", step);
    for (size_t r = 0; r < opted.rows.size(); r += 2) ExpectSameRow(got, r, vanilla, r);
  });
}

TEST_P(PolicyConformanceTest, UncoupledPoliciesIgnoreBatchMates) {
  if (GetParam()->batch_coupled) GTEST_SKIP() << "batch-coupled by design";
  ForAll([](const GateSpec& gate, const std::string& policy, const TestStep& step) {
    const TestResult batch = RouteOnce(gate, policy, step);
    for (size_t r = 0; r < step.rows.size(); ++r) {
      TestStep one = step;
      one.rows = {step.rows[r]};
      one.logits.assign(step.View().Row(r), step.View().Row(r) + step.n);
      ExpectSameRow(RouteOnce(gate, policy, one), 0, batch, r);
    }
  });
}

TEST_P(PolicyConformanceTest, FewDecodeRowsStayVanilla) {
  if (!GetParam()->batch_coupled) GTEST_SKIP() << "min_rows belongs to batch-coupled policies";
  ForAll([](const GateSpec& gate, const std::string& policy, const TestStep& step) {
    const auto decode = static_cast<size_t>(std::count_if(
        step.rows.begin(), step.rows.end(),
        [](const RowInfo& row) { return row.valid && row.phase == RowPhase::kDecode; }));
    const std::string limited = fmt::format("{},min_rows={}", policy, decode + 1);
    const TestResult got = RouteOnce(gate, limited, step),
                     vanilla = RouteOnce(gate, "vanilla", step);
    for (size_t r = 0; r < step.rows.size(); ++r) ExpectSameRow(got, r, vanilla, r);
  });
}

TEST_P(PolicyConformanceTest, KeepsTheRowsMassOnRequest) {
  if (!GetParam()->takes_mass) GTEST_SKIP() << "keeps every expert";
  GateSpec gate = TestGate(64, 6, 1, 1, GateActivation::kSoftmax, false);
  gate.renormalize = Renormalize::kNone;
  std::mt19937_64 rng(3);
  const TestStep step = RandomStep(gate, 16, LogitKind::kNormal, rng, false);
  const TestResult vanilla = RouteOnce(gate, "vanilla", step);
  for (const std::string& policy : Settings(gate)) {
    const TestResult got = RouteOnce(gate, policy + ",mass=keep", step);
    for (size_t r = 0; r < 16; ++r) {
      const float want =
          std::accumulate(vanilla.weights[r].begin(), vanilla.weights[r].end(), 0.0f);
      EXPECT_NEAR(std::accumulate(got.weights[r].begin(), got.weights[r].end(), 0.0f), want, 1e-5)
          << policy;
    }
  }
}

TEST_P(PolicyConformanceTest, AllocatesNothingAndTakesThousandsOfRows) {
  std::mt19937_64 rng(11);
  for (const GateSpec& gate : {TestGate(256, 8, 8, 4), TestGate(1024, 8), TestGate(1, 1)}) {
    const TestStep step = RandomStep(gate, 4096, LogitKind::kNormal, rng, true);
    auto router = MakeTestRouter(gate, GetParam()->example(gate), 4096);
    router->Route(0, step.rows, step.View(), step.bias);
    const uint64_t before = AllocationCount();
    const RoutedStep routed = router->Route(0, step.rows, step.View(), step.bias);
    EXPECT_EQ(AllocationCount(), before);
    EXPECT_EQ(routed.plan.row_of_slot.size(), routed.stats.assignments);
  }
}

std::string KindName(const ::testing::TestParamInfo<const PolicyKind*>& info) {
  return std::string(info.param->name);
}
INSTANTIATE_TEST_SUITE_P(AllPolicies, PolicyConformanceTest,
                         ::testing::ValuesIn(AllPolicies().begin(), AllPolicies().end()), KindName);

}  // namespace
}  // namespace carpool
