#include "routing/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "routing/policy_spec.h"

namespace carpool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Routed {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> weights;
  RoutingStats stats;
  std::vector<int32_t> experts;
};

std::unique_ptr<Router> MakeRouter(const GateSpec& gate, const std::string& policy,
                                   size_t rows = 64) {
  auto spec = ParsePolicy(policy);
  EXPECT_TRUE(spec) << spec.error().message;
  auto router = Router::Make(gate, *spec, 1, rows);
  EXPECT_TRUE(router) << router.error().message;
  return std::move(router).value();
}

Routed RouteRows(const GateSpec& gate, const std::string& policy,
                 const std::vector<std::vector<float>>& logits, std::vector<RowInfo> rows = {},
                 const std::vector<float>& bias = {}) {
  auto router = MakeRouter(gate, policy);
  if (rows.empty()) rows.resize(logits.size());
  std::vector<float> flat;
  for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  const auto step = router->Route(
      0, rows, MatView<const float>(flat.data(), logits.size(), gate.num_experts), bias);
  Routed out;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto n = static_cast<size_t>(step.counts[r]);
    out.ids.emplace_back(step.ids.Row(r), step.ids.Row(r) + n);
    out.weights.emplace_back(step.weights.Row(r), step.weights.Row(r) + n);
    for (size_t i = n; i < step.ids.cols; ++i) {
      EXPECT_EQ(step.ids.Row(r)[i], -1);
      EXPECT_EQ(step.weights.Row(r)[i], 0.0f);
    }
  }
  out.stats = step.stats;
  out.experts.assign(step.plan.experts.begin(), step.plan.experts.end());
  return out;
}

GateSpec SoftmaxGate(size_t n, size_t k) {
  GateSpec gate;
  gate.num_experts = n;
  gate.top_k = k;
  gate.activation = GateActivation::kSoftmax;
  return gate;
}

const std::vector<std::vector<float>> kOeaRows = {{3, 2, 1, 0, -1, -2, -3, -4},
                                                  {-4, -3, 0, 1, 3, 2, -1, -2},
                                                  {2, -1, 0, 3, -2, -3, 1, -4},
                                                  {5, -9, -9, -9, -9, -9, -9, 4}};

TEST(OeaTest, PublishedVectorOneOwnExpert) {
  const auto got = RouteRows(SoftmaxGate(8, 3), "oea:k0=1", kOeaRows);
  EXPECT_THAT(got.ids, ElementsAre(ElementsAre(0, 3, 4), ElementsAre(4, 3, 0), ElementsAre(3, 0, 4),
                                   ElementsAre(0, 3, 4)));
  const float want[3][3] = {{.936240f, .046613f, .017148f},
                            {.880090f, .119107f, .000803f},
                            {.727475f, .267623f, .004902f}};
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got.weights[r][i], want[r][i], 1e-6);
  }
  EXPECT_THAT(got.experts, ElementsAre(0, 3, 4));
  EXPECT_EQ(got.stats.distinct_experts, 3u);
  EXPECT_EQ(got.stats.piggybacks, 8u);  // every row has one own expert and rides on two
  EXPECT_EQ(RouteRows(SoftmaxGate(8, 3), "vanilla", kOeaRows).stats.distinct_experts, 8u);
}

TEST(OeaTest, PublishedVectorTwoOwnExperts) {
  const auto got = RouteRows(SoftmaxGate(8, 3), "oea:k0=2", kOeaRows);
  EXPECT_THAT(got.ids, ElementsAre(ElementsAre(0, 1, 3), ElementsAre(4, 5, 3), ElementsAre(3, 0, 1),
                                   ElementsAre(0, 7, 1)));
  EXPECT_NEAR(got.weights[1][1], .244728f, 1e-6);
  EXPECT_THAT(got.experts, ElementsAre(0, 1, 3, 4, 5, 7));
}

TEST(OeaTest, PaddingAddsNothing) {
  std::vector<RowInfo> rows(4);
  rows[3].valid = false;
  const auto got = RouteRows(SoftmaxGate(8, 3), "oea:k0=2", kOeaRows, rows);
  EXPECT_THAT(got.experts, ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(got.ids[3], ElementsAre());
  EXPECT_EQ(got.stats.rows, 3u);
  EXPECT_EQ(RouteRows(SoftmaxGate(8, 3), "vanilla", kOeaRows, rows).stats.distinct_experts, 7u);
}

TEST(OeaTest, NeutralIsVanilla) {
  const auto a = RouteRows(SoftmaxGate(8, 3), "vanilla", kOeaRows),
             b = RouteRows(SoftmaxGate(8, 3), "oea:k0=3", kOeaRows);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(b.stats.piggybacks, 0u);
  EXPECT_EQ(b.stats.dropped, 0u);
}

TEST(OeaTest, ExactAndPrefillRowsKeepVanillaAndLendTheirExperts) {
  std::vector<RowInfo> rows(4);
  rows[0].exact = true;
  rows[1].phase = RowPhase::kPrefill;
  const auto vanilla = RouteRows(SoftmaxGate(8, 3), "vanilla", kOeaRows, rows);
  const auto got = RouteRows(SoftmaxGate(8, 3), "oea:k0=1", kOeaRows, rows);
  for (size_t r : {0u, 1u}) {
    EXPECT_EQ(got.ids[r], vanilla.ids[r]);
    EXPECT_EQ(got.weights[r], vanilla.weights[r]);
  }
  // S = {0,1,2} + {4,5,3} + {3} + {0}
  EXPECT_THAT(got.ids[2], ElementsAre(3, 0, 2));
  const auto alone = RouteRows(SoftmaxGate(8, 3), "oea:k0=1,ride=0", kOeaRows, rows);
  EXPECT_THAT(alone.ids[2], ElementsAre(3, 0));
  const auto few = RouteRows(SoftmaxGate(8, 3), "oea:k0=1,min_rows=4", kOeaRows, rows);
  EXPECT_EQ(few.ids, vanilla.ids);  // three decode rows only
}

TEST(OeaTest, MassStopsOwnExpertsEarly) {
  // t3: .731/.269 of the mass in two experts; p = .7 needs one.
  const auto got = RouteRows(SoftmaxGate(8, 3), "oea:k0=3,p=0.7", kOeaRows);
  EXPECT_EQ(got.ids[3][0], 0);
  EXPECT_EQ(std::count(got.experts.begin(), got.experts.end(), 7), 0);
  const auto ranks = RouteRows(SoftmaxGate(8, 3), "oea:k0=1,maxp=2", kOeaRows);
  EXPECT_THAT(ranks.ids,
              ElementsAre(ElementsAre(0), ElementsAre(4), ElementsAre(3, 0), ElementsAre(0)));
  const auto wide = RouteRows(SoftmaxGate(8, 3), "oea:k0=3,kmax=5", kOeaRows);
  for (const auto& ids : wide.ids) EXPECT_EQ(ids.size(), 5u);
}

TEST(RouterTest, NanInfinityAndZeroSigns) {
  const float nan = __builtin_nanf(""), inf = __builtin_inff();
  GateSpec gate;
  gate.num_experts = 5;
  gate.top_k = 3;
  const auto got = RouteRows(gate, "vanilla",
                             {{nan, nan, nan, nan, nan},
                              {nan, 1, nan, -inf, nan},
                              {-0.0f, 0.0f, -0.0f, 0.0f, -1},
                              {-inf, inf, 0, inf, -inf}});
  EXPECT_THAT(got.ids[0], ElementsAre(0, 1, 2));
  EXPECT_THAT(got.ids[1], ElementsAre(1, 3, 0));
  EXPECT_THAT(got.ids[2], ElementsAre(0, 1, 2));
  EXPECT_THAT(got.ids[3], ElementsAre(1, 3, 2));
}

TEST(RouterTest, PlanListsEverySlotOnce) {
  auto router = MakeRouter(SoftmaxGate(8, 3), "oea:k0=2");
  std::vector<float> flat;
  for (const auto& row : kOeaRows) flat.insert(flat.end(), row.begin(), row.end());
  std::vector<RowInfo> rows(4);
  rows[1].valid = false;
  const auto step = router->Route(0, rows, MatView<const float>(flat.data(), 4, 8), {});
  const ExpertPlan& plan = step.plan;
  ASSERT_EQ(plan.row_offsets.size(), 5u);
  EXPECT_EQ(plan.row_offsets[2], plan.row_offsets[1]);
  std::vector<int> seen(plan.row_of_slot.size());
  for (size_t r = 0; r < 4; ++r) {
    for (uint32_t i = plan.row_offsets[r]; i < plan.row_offsets[r + 1]; ++i) {
      const uint32_t slot = plan.slot_of[i];
      ++seen[slot];
      EXPECT_EQ(plan.row_of_slot[slot], static_cast<int32_t>(r));
      EXPECT_EQ(plan.weight_of_slot[slot], step.weights.Row(r)[i - plan.row_offsets[r]]);
      const auto expert = std::upper_bound(plan.offsets.begin(), plan.offsets.end(), slot) -
                          plan.offsets.begin() - 1;
      EXPECT_EQ(plan.experts[static_cast<size_t>(expert)],
                step.ids.Row(r)[i - plan.row_offsets[r]]);
    }
  }
  EXPECT_THAT(seen, ::testing::Each(1));
  EXPECT_TRUE(std::is_sorted(plan.experts.begin(), plan.experts.end()));
}

std::string ErrorOf(const std::string& text) {
  auto spec = ParsePolicy(text);
  return spec ? "" : spec.error().message;
}

TEST(PolicySpecTest, CanonicalText) {
  for (const auto& [in, out] : std::vector<std::pair<std::string, std::string>>{
           {"exact", "vanilla"},
           {"vanilla", "vanilla"},
           {"topk:k=5", "topk:k=5"},
           {"oea:maxp=32,k0=3,p=0.90", "oea:k0=3,p=0.9,maxp=32"},
           {"oea:k0=3,ride=1,min_rows=1,mass=gate", "oea:k0=3"},
           {"oea:k0=3,ride=0,min_rows=4,mass=keep", "oea:k0=3,min_rows=4,ride=0,mass=keep"}}) {
    auto spec = ParsePolicy(in);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(PolicyText(**spec), out);
  }
}

TEST(PolicySpecTest, ErrorsListWhatIsKnown) {
  EXPECT_THAT(ErrorOf("oee:k0=3"), HasSubstr("unknown routing policy 'oee'; known: "));
  EXPECT_THAT(ErrorOf("oee"), HasSubstr("oea"));
  EXPECT_THAT(ErrorOf("oea:k1=3"),
              HasSubstr("unknown key 'k1'; known: k0, p, kmax, maxp, min_rows, ride, mass"));
  EXPECT_THAT(ErrorOf("oea"), HasSubstr("wants k0="));
  EXPECT_THAT(ErrorOf("oea:k0=0"), HasSubstr("1.."));
  EXPECT_THAT(ErrorOf("oea:k0=2.5"), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf("oea:k0=3,k0=4"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf("oea:k0=three"), HasSubstr("'three'"));
  EXPECT_THAT(ErrorOf("oea:k0=3,"), HasSubstr("key=value"));
  EXPECT_THAT(ErrorOf("oea:k0=3,p=nan"), HasSubstr("got 'nan'"));
  EXPECT_THAT(ErrorOf("vanilla:k=3"), HasSubstr("unknown key 'k'; known: none"));
  EXPECT_THAT(ErrorOf("topk:k=5,min_rows=2"), HasSubstr("known: k, mass"));
  EXPECT_THAT(ErrorOf("oea:k0=3,ride=2"), HasSubstr("0 or 1"));
  EXPECT_THAT(ErrorOf("oea:k0=@/nonexistent.json"), HasSubstr("cannot read"));
  EXPECT_THAT(ErrorOf("auto"), HasSubstr("calibration"));
  EXPECT_THAT(ErrorOf("auto:max=1"), HasSubstr("known: max_kl"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("unknown routing policy ''"));
}

TEST(PolicySpecTest, KnobsAreCheckedAgainstTheGate) {
  auto error = [](const std::string& policy) {
    auto router = Router::Make(SoftmaxGate(8, 3), *ParsePolicy(policy), 1, 4);
    return router ? std::string() : router.error().message;
  };
  EXPECT_THAT(error("oea:k0=4"), HasSubstr("k0 wants 1..3"));
  EXPECT_THAT(error("oea:k0=2,kmax=1"), HasSubstr("kmax wants 2..8"));
  EXPECT_THAT(error("oea:k0=2,maxp=9"), HasSubstr("maxp wants 2..8"));
  EXPECT_THAT(error("topk:k=4"), HasSubstr("k wants 1..3"));
}

TEST(PolicySpecTest, PerLayerNumbers) {
  const std::string path = ::testing::TempDir() + "/k0_per_layer.json";
  FILE* f = std::fopen(path.c_str(), "w");
  std::fputs("[3, 1]", f);
  std::fclose(f);
  auto spec = ParsePolicy("oea:k0=@" + path);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(PolicyText(**spec), "oea:k0=@" + path);
  auto inline_list = ParsePolicy("oea:k0=3/1");
  ASSERT_TRUE(inline_list) << inline_list.error().message;
  EXPECT_EQ((*inline_list)->knobs[0].values, (*spec)->knobs[0].values);
  EXPECT_EQ(PolicyText(**inline_list), "oea:k0=3/1");
  for (const char* bad : {"oea:k0=3/", "oea:k0=/3", "oea:k0=3//1", "oea:k0=3/x", "oea:k0=3/0"})
    EXPECT_FALSE(ParsePolicy(bad)) << bad;
  auto wrong = Router::Make(SoftmaxGate(8, 3), *spec, 3, 4);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("has 2 numbers; this model has 3 MoE layers"));
  auto router = Router::Make(SoftmaxGate(8, 3), *spec, 2, 4);
  ASSERT_TRUE(router) << router.error().message;
  std::vector<float> flat;
  for (const auto& row : kOeaRows) flat.insert(flat.end(), row.begin(), row.end());
  const std::vector<RowInfo> rows(4);
  const MatView<const float> logits(flat.data(), 4, 8);
  EXPECT_EQ((*router)->Route(0, rows, logits, {}).stats.distinct_experts, 8u);
  EXPECT_EQ((*router)->Route(1, rows, logits, {}).stats.distinct_experts, 3u);
}

TEST(PolicySpecTest, EnvironmentFirstThatIsSetWins) {
  auto text = [] {
    auto spec = PolicyFromEnvironment();
    return spec ? PolicyText(**spec) : spec.error().message;
  };
  for (const char* name : {"CARPOOL_ROUTING", "CARPOOL_OEA_K0", "SGLANG_OEA_K0"}) unsetenv(name);
  EXPECT_EQ(text(), "vanilla");
  setenv("SGLANG_OEA_K0", "5", 1);
  EXPECT_EQ(text(), "oea:k0=5");
  setenv("CARPOOL_OEA_K0", "3", 1);
  EXPECT_EQ(text(), "oea:k0=3");
  setenv("CARPOOL_ROUTING", "topk:k=4", 1);
  EXPECT_EQ(text(), "topk:k=4");
  setenv("CARPOOL_ROUTING", "0", 1);
  setenv("CARPOOL_OEA_K0", "", 1);
  EXPECT_EQ(text(), "oea:k0=5");
  setenv("SGLANG_OEA_K0", "abc", 1);
  EXPECT_THAT(text(), HasSubstr("SGLANG_OEA_K0: wanted a whole number"));
  setenv("SGLANG_OEA_K0", "0", 1);
  EXPECT_EQ(text(), "vanilla");
  setenv("CARPOOL_ROUTING", "nope", 1);
  EXPECT_THAT(text(), HasSubstr("CARPOOL_ROUTING: unknown routing policy"));
  for (const char* name : {"CARPOOL_ROUTING", "CARPOOL_OEA_K0", "SGLANG_OEA_K0"}) unsetenv(name);
}

TEST(GateTest, ImpossibleConfigurationsNameTheField) {
  auto error = [](auto change) {
    GateSpec gate;
    gate.num_experts = 16;
    gate.top_k = 4;
    change(gate);
    auto status = ValidateGate(gate);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(error([](GateSpec&) {}), "");
  EXPECT_THAT(error([](GateSpec& g) { g.num_experts = 0; }), HasSubstr("num_experts"));
  EXPECT_THAT(error([](GateSpec& g) { g.top_k = 0; }), HasSubstr("top_k"));
  EXPECT_THAT(error([](GateSpec& g) { g.top_k = 17; }), HasSubstr("top_k"));
  EXPECT_THAT(error([](GateSpec& g) { g.num_groups = 3; }), HasSubstr("num_groups"));
  EXPECT_THAT(error([](GateSpec& g) { g.num_groups = 0; }), HasSubstr("num_groups"));
  EXPECT_THAT(error([](GateSpec& g) { g.groups_kept = 2; }), HasSubstr("groups_kept"));
  EXPECT_THAT(error([](GateSpec& g) { g.num_groups = 8; }), HasSubstr("top_k: wanted at most"));
  EXPECT_THAT(error([](GateSpec& g) { g.num_groups = 16, g.groups_kept = 4; }),
              HasSubstr("second maximum"));
  EXPECT_THAT(error([](GateSpec& g) { g.scale = __builtin_inff(); }), HasSubstr("scale"));
  EXPECT_THAT(error([](GateSpec& g) { g.scale = 0, g.fused_shared = 1; }), HasSubstr("scale"));
  EXPECT_EQ(error([](GateSpec& g) {
              g.num_groups = 16, g.groups_kept = 4, g.group_score = GroupScore::kMax;
            }),
            "");
}

}  // namespace
}  // namespace carpool
