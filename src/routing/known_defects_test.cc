// One regression per known routing defect of other engines (repository and number in the name):
// what broke there must hold here, or be reproduced only by the named function that has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "routing/dispatch.h"
#include "routing/expert_placement.h"
#include "routing/gate_functions.h"
#include "routing/reference.h"
#include "routing/test_inputs.h"
#include "routing/trace.h"

namespace carpool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr float kNan = __builtin_nanf("");
constexpr float kInf = __builtin_inff();

TestResult Route(const GateSpec& gate, std::vector<float> x, std::vector<float> b = {}) {
  GateSpec g = gate;
  g.has_bias = !b.empty();
  return RouteOnce(g, "vanilla", {g.num_experts, std::move(x), std::move(b), {RowInfo{}}});
}
GateSpec Plain(size_t n, size_t k, GateActivation act = GateActivation::kSigmoid) {
  GateSpec g = TestGate(n, k, 1, 1, act, false);
  g.scale = 1;
  return g;
}
GateSpec Named(const char* function, size_t n, size_t k, bool bias, bool renormalize = true,
               GateActivation act = GateActivation::kSigmoid) {
  GateCall call;
  call.num_experts = n;
  call.top_k = k;
  call.has_bias = bias;
  call.renormalize = renormalize;
  call.scoring = act;
  return *MakeGate(**FindGateFunction(function), call);
}
std::string ErrorOf(const GateSpec& gate) {
  auto status = ValidateGate(gate);
  return status ? "" : status.error().message;
}
/// Collects lines.
class Lines final : public TraceSink {
 public:
  void Line(std::string_view json) override { text += std::string(json) + "\n"; }
  std::string text;
};
std::string TraceOf(const GateSpec& gate, const std::vector<float>& x, int level) {
  auto router = MakeTestRouter(gate, "vanilla", 1);
  Lines lines;
  router->set_trace(&lines, {level});
  const std::vector<RowInfo> rows(1);
  router->Route(0, rows, MatView<const float>(x.data(), 1, gate.num_experts), {});
  return lines.text;
}
DispatchLog Explain(const char* profile, const char* preset, size_t fused = 0) {
  DispatchCase c;
  c.config = *PresetConfig(preset);
  c.fused_shared = fused;
  return Dispatch(**FindDispatchProfile(profile), c);
}

TEST(KnownDefectTest, Sglang31017_UnderflowedSumIsNotNan) {
  EXPECT_THAT(Route(Plain(4, 2), {-200, -200, -200, -200}).weights[0], ElementsAre(0, 0));
  EXPECT_TRUE(std::isnan(
      Route(Named("F6", 4, 2, false), {-200, -200, -200, -200}).weights[0][0]));  // as it was
}
TEST(KnownDefectTest, Sglang30989_NonFiniteLogitsShowInTheTrace) {
  EXPECT_THAT(TraceOf(Plain(4, 2), {kNan, 1, 2, 3}, 1), HasSubstr("\"nan_rows\":1"));
  EXPECT_THAT(TraceOf(Plain(4, 2), {kInf, 1, 2, 3}, 1), HasSubstr("\"inf_rows\":1"));
  EXPECT_THAT(TraceOf(Plain(4, 2), {0, 1, 2, 3}, 1), HasSubstr("\"nan_rows\":0,\"inf_rows\":0"));
}
TEST(KnownDefectTest, Sglang30079_AllNanRowStaysInRange) {
  for (const size_t n : {5u, 16u, 256u}) {
    EXPECT_THAT(Route(Plain(n, 3), std::vector<float>(n, kNan)).ids[0], ElementsAre(0, 1, 2));
    EXPECT_THAT(Route(Named("F12", n, 3, false), std::vector<float>(n, kNan)).ids[0],
                ElementsAre(0, 1, 2));
  }
}
TEST(KnownDefectTest, Sglang23874_NegativeChoicesKeepTheirOrder) {
  EXPECT_THAT(Route(Plain(4, 2), {0, 1, 2, 3}, {-9, -8, -7, -10}).ids[0], ElementsAre(2, 1));
  EXPECT_THAT(Route(Plain(17, 1), std::vector<float>(17, -5), std::vector<float>(17, -3)).ids[0],
              ElementsAre(0));
}
TEST(KnownDefectTest, Sglang31213_37133_LowPrecisionBiasChangesChoices) {
  // A bias of about 6.9: one bf16 step there is 0.03125, so bf16 cannot tell these experts apart.
  std::vector<float> bias(16);
  for (size_t e = 0; e < 16; ++e) bias[e] = 6.9f + 0.001f * static_cast<float>(e);
  GateSpec gate = Plain(16, 2);
  EXPECT_THAT(Route(gate, std::vector<float>(16, 0.5f), bias).ids[0], ElementsAre(15, 14));
  gate.bias_number = gate.choice_number = GateNumber::kBF16;
  EXPECT_THAT(Route(gate, std::vector<float>(16, 0.5f), bias).ids[0], ElementsAre(0, 1));
}
TEST(KnownDefectTest, Sglang17325_FusedSlotsAndRoutedCountAreSeparatePredicates) {
  EXPECT_EQ(Explain("sglang-2026-02", "deepseek-v3", 1).kernel, "moe_fused_gate");
  EXPECT_EQ(Explain("sglang-2026-05", "deepseek-v3", 1).rule, "R1");
}
TEST(KnownDefectTest, Sglang10368_VectorKernelsAgreeWithTheReference) {
  std::mt19937_64 rng(1);
  const GateSpec gate = TestGate(256, 8);
  const TestStep step = RandomStep(gate, 32, LogitKind::kPermutation, rng, false);
  const TestResult got = RouteOnce(gate, "vanilla", step);
  for (size_t r = 0; r < 32; ++r) {
    const auto ranks = ReferenceScore(gate, step.View().RowSpan(r), step.bias).ranks;
    EXPECT_EQ(got.ids[r], std::vector<int32_t>(ranks.begin(), ranks.begin() + 8));
  }
}
TEST(KnownDefectTest, Sglang36711_IdsStayBelowTheTableSize) {
  std::mt19937_64 rng(2);
  const GateSpec gate = TestGate(288, 8);
  const TestResult got =
      RouteOnce(gate, "vanilla", RandomStep(gate, 64, LogitKind::kExtreme, rng, false));
  for (const auto& ids : got.ids) EXPECT_LT(*std::max_element(ids.begin(), ids.end()), 288);
}
TEST(KnownDefectTest, Sglang38320_EpsilonDoesNotAttenuateRealSums) {
  // Sums down to 1e-12 still weigh to one; only sums near 1e-20 are attenuated.
  const auto w = Route(Plain(4, 2), {-28, -28, -30, -30}).weights[0];
  EXPECT_NEAR(w[0] + w[1], 1.0f, 1e-6);
}
TEST(KnownDefectTest, Sglang5866_4505_3680_SoftmaxAndSharedTables) {
  EXPECT_NEAR(Route(Plain(4, 2, GateActivation::kSoftmax), {1, 1, 0, 0}).weights[0][0], 0.5f, 1e-6);
  GateSpec gate = Plain(4, 2);
  gate.fused_shared = 1;
  EXPECT_THAT(Route(gate, {3, 2, 1, 0}).ids[0], ElementsAre(0, 1, 4));
}
TEST(KnownDefectTest, Sglang28237_SharedWeightIsOneAfterScaling) {
  GateSpec gate = Plain(4, 2);
  gate.scale = 2.5f;
  gate.fused_shared = 1;
  EXPECT_NEAR(Route(gate, {3, 2, 1, 0}).weights[0][2], 1.0f, 1e-6);
  gate.shared_weight = 0.5f;  // a fixed weight is left alone
  EXPECT_EQ(Route(gate, {3, 2, 1, 0}).weights[0][2], 0.5f);
}
TEST(KnownDefectTest, Sglang35160_WithoutRenormaliseWeightsAreProbabilities) {
  GateSpec gate = Plain(3, 2, GateActivation::kSoftmax);
  gate.renormalize = Renormalize::kNone;
  const float total = std::exp(2.0f) + std::exp(1.0f) + 1;
  EXPECT_NEAR(Route(gate, {2, 1, 0}).weights[0][0], std::exp(2.0f) / total, 1e-6);
  EXPECT_EQ(Route(Named("F4", 3, 2, false, false), {2, 1, 0}).weights[0][0], 2.0f);  // as it was
}
TEST(KnownDefectTest, Sglang35160_Qwen2MoeDoesNotNormalise) {
  EXPECT_FALSE(PresetConfig("qwen1.5-moe")->renormalize);
  EXPECT_FALSE(PresetConfig("olmoe-1b-7b")->renormalize);
  EXPECT_TRUE(PresetConfig("qwen3-30b")->renormalize);
}
TEST(KnownDefectTest, Vllm13474_DroppedGroupsNeverWin) {
  GateSpec gate = TestGate(8, 3, 4, 2);
  const std::vector<float> x = {0.5f, -1, 2, 0.25f, -0.5f, 1.5f, -2, 1};
  const std::vector<float> b = {-2, -1.5f, -2.25f, -1.875f, -2, -2.5f, -1.25f, -1.9375f};
  EXPECT_THAT(Route(gate, x, b).ids[0], ElementsAre(6, 7, 1));
  gate.group_mask = GroupMask::kZero;
  EXPECT_THAT(Route(gate, x, b).ids[0], ElementsAre(2, 3, 4));  // as it was
}
TEST(KnownDefectTest, Vllm24146_LowestIsMinusInfinity) {
  EXPECT_THAT(Route(Plain(4, 2, GateActivation::kIdentity), {-1e30f, -3e38f, -kInf, -2e38f}).ids[0],
              ElementsAre(0, 3));
}
TEST(KnownDefectTest, Vllm31478_32058_PaddedLanesLose) {
  for (size_t n = 1; n <= 33; ++n) {
    const auto ids =
        Route(Plain(n, n, GateActivation::kIdentity), std::vector<float>(n, -1e30f)).ids[0];
    EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), n);
    EXPECT_EQ(*std::max_element(ids.begin(), ids.end()), static_cast<int32_t>(n) - 1);
  }
}
TEST(KnownDefectTest, Vllm39391_NanRowsHaveDistinctIds) {
  const auto ids = Route(Plain(64, 8), std::vector<float>(64, kNan)).ids[0];
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), 8u);
}
TEST(KnownDefectTest, Vllm50845_48979_PaddingIsSkipped) {
  RowInfo padding;
  padding.valid = false;
  const TestResult got = RouteOnce(
      Plain(4, 2), "vanilla", {4, {kNan, kNan, kNan, kNan, 0, 1, 2, 3}, {}, {padding, RowInfo{}}});
  EXPECT_TRUE(got.ids[0].empty());
  EXPECT_EQ(got.stats.distinct_experts, 2u);
}
TEST(KnownDefectTest, Vllm29439_30422_GroupsOfOneAreRefused) {
  EXPECT_THAT(ErrorOf(TestGate(8, 2, 8, 4)), HasSubstr("second maximum"));
}
TEST(KnownDefectTest, Vllm55514_52679_54403_TiesGoToTheLowerId) {
  EXPECT_THAT(Route(Plain(300, 4), std::vector<float>(300, 1.0f)).ids[0], ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Route(Plain(4, 3), {1, 2, 2, 1}).ids[0], ElementsAre(1, 2, 0));
}
TEST(KnownDefectTest, Vllm57016_ExactModePromisesRoutingOnly) {
  EXPECT_FALSE(MakeTestRouter(Plain(8, 2), "vanilla", 4)->batch_coupled());
  EXPECT_TRUE(MakeTestRouter(Plain(8, 2), "oea:k0=1", 4)->batch_coupled());
}
TEST(KnownDefectTest, Vllm30623_MethodFollowsActivationAndRenormalise) {
  EXPECT_EQ(Explain("flashinfer-trtllm", "qwen3-30b").kernel, "trtllm_gen Renormalize");
  EXPECT_EQ(Explain("flashinfer-trtllm", "olmoe-1b-7b").kernel, "trtllm_gen Default");
}
TEST(KnownDefectTest, Flashinfer4867_5165_OneGroupAndFewExpertsPerRow) {
  EXPECT_EQ(ErrorOf(TestGate(256, 8, 1, 1)), "");  // k <= kg * N/G is the right test
  EXPECT_EQ(Explain("sglang-2026-02", "glm-5").kernel,
            "biased_grouped_topk_impl");  // the historical one refuses
  for (size_t k = 1; k < 8; ++k)
    EXPECT_EQ(Route(Plain(256, k), std::vector<float>(256, 0.5f)).ids[0].size(), k);
}
TEST(KnownDefectTest, Flashinfer3875_ScoresAreGatheredNotRecovered) {
  const auto w =
      Route(Plain(2, 2), {-18, -17}, {12, 12}).weights[0];  // scores of 1e-8 under a bias of 12
  EXPECT_NEAR(w[0], 1 / (1 + std::exp(1.0)), 1e-5);
  EXPECT_NEAR(w[1], 1 / (1 + std::exp(-1.0)), 1e-5);
}
TEST(KnownDefectTest, Flashinfer3803_3946_GroupedScalesAndOrder) {
  GateSpec gate = TestGate(64, 4, 8, 4);
  std::mt19937_64 rng(4);
  const TestResult got =
      RouteOnce(gate, "vanilla", RandomStep(gate, 16, LogitKind::kNormal, rng, false));
  for (const auto& w : got.weights)
    EXPECT_NEAR(std::accumulate(w.begin(), w.end(), 0.0f), 2.5f, 1e-5);
}
TEST(KnownDefectTest, Aiter2369_NumericsDoNotDependOnTheRowCount) {
  std::mt19937_64 rng(6);
  const GateSpec gate = TestGate(256, 8);
  const TestStep all = RandomStep(gate, 1000, LogitKind::kNormal, rng, false);
  const TestResult batch = RouteOnce(gate, "vanilla", all);
  for (const size_t r : {0u, 499u, 999u}) {
    const TestResult one =
        RouteOnce(gate, "vanilla",
                  {256, {all.View().Row(r), all.View().Row(r) + 256}, all.bias, {RowInfo{}}});
    EXPECT_EQ(one.ids[0], batch.ids[r]);
    EXPECT_EQ(one.weights[0], batch.weights[r]);
  }
}
TEST(KnownDefectTest, Aiter4530_InfinitiesInPaddingAreNeverScored) {
  RowInfo padding;
  padding.valid = false;
  const TestResult got =
      RouteOnce(Plain(2, 1), "oea:k0=1", {2, {kInf, kNan, 0, 1}, {}, {padding, RowInfo{}}});
  EXPECT_THAT(got.ids[1], ElementsAre(1));
}
TEST(KnownDefectTest, Transformers48647_ImpossibleTopologyIsRefused) {
  EXPECT_THAT(ErrorOf(TestGate(16, 5, 4, 1)), HasSubstr("top_k"));
  EXPECT_THAT(ErrorOf(TestGate(16, 4, 16, 8)), HasSubstr("second maximum"));
}
TEST(KnownDefectTest, Transformers39581_ErnieBiasDoesNotReachTheWeights) {
  const GateSpec gate = Named("hf-ernie", 3, 2, true, true, GateActivation::kSoftmax);
  const auto got = Route(gate, {1, 1, 0}, {0, 0, 5});
  EXPECT_THAT(got.ids[0], ElementsAre(2, 0));
  EXPECT_NEAR(got.weights[0][0], 1 / (1 + std::exp(1.0)), 1e-6);
}
TEST(KnownDefectTest, RtpLlm1273_SecondOfASingleExpertGroupIsExplicit) {
  GateSpec gate = TestGate(4, 2, 4, 2);
  EXPECT_NE(ErrorOf(gate), "");
  gate.group_score = GroupScore::kMax;
  EXPECT_EQ(ErrorOf(gate), "");
}
TEST(KnownDefectTest, Megatron1441_GroupScoreIsAParameter) {
  GateSpec gate = TestGate(8, 2, 2, 1);
  const std::vector<float> x = {3, -9, -9, -9, 2, 2, -9, -9}, b(8);
  EXPECT_THAT(Route(gate, x, b).ids[0], ElementsAre(4, 5));
  gate.group_score = GroupScore::kMax;
  EXPECT_EQ(Route(gate, x, b).ids[0][0], 0);
}
TEST(KnownDefectTest, FlagGems4244_4245_ChoiceIsFp32) {
  GateSpec gate = Plain(2, 1);
  EXPECT_THAT(Route(gate, {5.0f, 5.03125f}, {0, 0}).ids[0], ElementsAre(1));
  gate.choice_number = GateNumber::kBF16;
  EXPECT_THAT(Route(gate, {5.0f, 5.03125f}, {0, 0}).ids[0], ElementsAre(0));
}
TEST(KnownDefectTest, Colibri558_563_NanNeverBecomesAnIndex) {
  EXPECT_THAT(Route(Plain(3, 3), {kNan, kNan, 1}).ids[0], ElementsAre(2, 0, 1));
  EXPECT_EQ(PhysicalExpert({{0}, {{0}}}, -1, ReplicaChoice::kPosition, {}), -1);
}
TEST(KnownDefectTest, MetaX284_WholeGridOfShapesWeighsUnbiased) {
  std::mt19937_64 rng(8);
  for (const size_t n : {8u, 64u, 128u, 160u, 256u, 384u}) {
    for (const size_t k : {1u, 4u, 8u}) {
      GateSpec gate = TestGate(n, k);
      const TestStep step = RandomStep(gate, 3, LogitKind::kNormal, rng, false);
      const TestResult got = RouteOnce(gate, "vanilla", step);
      for (size_t r = 0; r < 3; ++r) {
        const auto row = ReferenceScore(gate, step.View().RowSpan(r), step.bias);
        const auto want = ReferenceWeigh(gate, row, got.ids[r]);
        for (size_t i = 0; i < k; ++i) EXPECT_NEAR(got.weights[r][i], want[i], 1e-5);
      }
    }
  }
}

// The shapes of the engines' own suites, with tie-free logits and our own seeds, against the
// reference.
TEST(UpstreamShapeTest, IdsAndWeightsEqualTheReference) {
  const struct {
    size_t n, groups, kept, k;
    GateActivation act;
    bool bias;
  } shapes[] = {
      {128, 4, 2, 4, GateActivation::kSigmoid, true},
      {256, 8, 4, 8, GateActivation::kSigmoid, true},
      {512, 16, 8, 16, GateActivation::kSigmoid, true},
      {128, 8, 4, 4, GateActivation::kSigmoid, true},
      {256, 16, 8, 8, GateActivation::kSigmoid, true},
      {64, 2, 2, 4, GateActivation::kSigmoid, true},
      {384, 1, 1, 6, GateActivation::kSigmoid, true},
      {384, 1, 1, 8, GateActivation::kSigmoid, true},
      {512, 1, 1, 22, GateActivation::kSigmoid, true},
      {160, 1, 1, 8, GateActivation::kSigmoid, true},
      {96, 1, 1, 8, GateActivation::kSigmoid, true},
      {72, 1, 1, 6, GateActivation::kSigmoid, true},
      {192, 8, 2, 8, GateActivation::kSigmoid, true},
      {16, 8, 2, 2, GateActivation::kSoftmax, false},
      {8, 2, 1, 2, GateActivation::kSoftmax, false},
      {256, 1, 1, 10, GateActivation::kSoftmax, false},
      {4, 1, 1, 4, GateActivation::kSoftmax, false},
      {16, 1, 1, 1, GateActivation::kSigmoid, true},
      {256, 1, 1, 6, GateActivation::kSqrtSoftplus, true},
  };
  std::mt19937_64 rng(1998);
  for (const auto& s : shapes) {
    GateSpec gate = TestGate(s.n, s.k, s.groups, s.kept, s.act, s.bias);
    if (!s.bias) gate.group_score = GroupScore::kMax;
    for (const size_t rows : {1u, 9u, 33u, 150u}) {
      SCOPED_TRACE(fmt::format("N={} G={} kg={} k={} T={}", s.n, s.groups, s.kept, s.k, rows));
      TestStep step = RandomStep(gate, rows, LogitKind::kPermutation, rng, false);
      for (float& b : step.bias) b = std::round(b * 64) / 64;
      const TestResult got = RouteOnce(gate, "vanilla", step);
      for (size_t r = 0; r < rows; ++r) {
        const ReferenceRow row = ReferenceScore(gate, step.View().RowSpan(r), step.bias);
        // Where two choices are closer than fp32 can tell, the order is the arithmetic's.
        double gap = 1;
        for (size_t i = 0; i + 1 < row.ranks.size() && i <= s.k; ++i) {
          gap = std::min(gap, row.choices[static_cast<size_t>(row.ranks[i])] -
                                  row.choices[static_cast<size_t>(row.ranks[i + 1])]);
        }
        if (gap < 1e-6) continue;
        EXPECT_EQ(got.ids[r],
                  std::vector<int32_t>(row.ranks.begin(),
                                       row.ranks.begin() + static_cast<ptrdiff_t>(s.k)));
        const auto want = ReferenceWeigh(gate, row, got.ids[r]);
        for (size_t i = 0; i < s.k; ++i)
          EXPECT_NEAR(got.weights[r][i], want[i], 1e-5 * std::max(1.0, want[i]));
      }
    }
  }
}

}  // namespace
}  // namespace carpool
