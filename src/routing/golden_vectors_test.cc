// Published test vectors of expert routing, computed in double precision independently of any
// engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "routing/gate_functions.h"
#include "routing/gate_math.h"
#include "routing/test_inputs.h"

namespace carpool {
namespace {

const std::vector<float> kX = {0.5f, -1.0f, 2.0f, 0.25f, -0.5f, 1.5f, -2.0f, 1.0f};
const std::vector<float> kB = {0, 0.5f, -0.25f, 0.125f, 0, -0.5f, 0.75f, 0.0625f};

struct Vector {
  const char* name;
  const char* function;
  GateCall call;
  std::vector<float> x;
  std::vector<float> b;
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

GateCall Call(size_t n, size_t k, GateActivation scoring, bool renormalize = true, float scale = 1,
              bool apply = false) {
  GateCall c;
  c.num_experts = n;
  c.top_k = k;
  c.scoring = scoring;
  c.renormalize = renormalize;
  c.scale = scale;
  c.apply_scale = apply;
  return c;
}
GateCall Groups(GateCall c, size_t groups, size_t kept) {
  c.num_groups = groups;
  c.groups_kept = kept;
  return c;
}
GateCall Shared(GateCall c, size_t shared) {
  c.fused_shared = shared;
  return c;
}
GateCall Logits(GateCall c, GateNumber number) {
  c.logit_number = number;
  return c;
}

std::vector<float> Minus2(std::vector<float> b) {
  for (float& v : b) v -= 2;
  return b;
}

constexpr auto kSig = GateActivation::kSigmoid;
constexpr auto kSoft = GateActivation::kSoftmax;
constexpr auto kSqrt = GateActivation::kSqrtSoftplus;

const std::vector<Vector> kVectors = {
    {"A1", "F6", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "F2", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "F9", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "F10", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "F11", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "F12", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1 by id", "F12-radix", Call(8, 3, kSig), kX, kB, {1, 6, 7}, {.240297, .106507, .653196}},
    {"A1", "vllm-bias", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "llama.cpp", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A1", "carpool", Call(8, 3, kSig), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"A2",
     "F6",
     Call(8, 3, kSig, true, 2.5f, true),
     kX,
     kB,
     {6, 7, 1},
     {.266267, 1.632989, .600743}},
    {"A2",
     "carpool",
     Call(8, 3, kSig, true, 2.5f),
     kX,
     kB,
     {6, 7, 1},
     {.266267, 1.632989, .600743}},
    {"A2 unasked",
     "F6",
     Call(8, 3, kSig, true, 2.5f, false),
     kX,
     kB,
     {6, 7, 1},
     {.106507, .653196, .240297}},
    {"A3",
     "F6",
     Call(8, 3, kSig, false, 2.5f, true),
     kX,
     kB,
     {6, 7, 1},
     {.119203, .731059, .268941}},
    {"A3",
     "F12",
     Call(8, 3, kSig, false, 2.5f, true),
     kX,
     kB,
     {6, 7, 1},
     {.2980073, 1.8276465, .6723535}},
    {"A4",
     "F6",
     Shared(Call(8, 3, kSig, true, 2.5f), 1),
     kX,
     kB,
     {6, 7, 1, 8},
     {.106507, .653196, .240297, .4}},
    {"A4",
     "F12",
     Shared(Call(8, 3, kSig, true, 2.5f), 1),
     kX,
     kB,
     {6, 7, 1, 8},
     {.106507, .653196, .240297, .4}},
    {"A4 applied",
     "F6",
     Shared(Call(8, 3, kSig, true, 2.5f, true), 1),
     kX,
     kB,
     {6, 7, 1, 8},
     {.266267, 1.632989, .600743, 1}},
    {"A5", "F3", Call(8, 3, kSig), kX, {}, {2, 5, 7}, {.362553, .336529, .300918}},
    {"B1", "F6", Groups(Call(8, 3, kSig), 4, 2), kX, kB, {6, 7, 1}, {.106507, .653196, .240297}},
    {"B1",
     "vllm-grouped",
     Groups(Call(8, 3, kSig), 4, 2),
     kX,
     kB,
     {6, 7, 1},
     {.106507, .653196, .240297}},
    {"C1",
     "F6",
     Groups(Call(8, 3, kSig), 4, 2),
     kX,
     Minus2(kB),
     {6, 7, 1},
     {.106507, .653196, .240297}},
    {"C1",
     "llama.cpp",
     Groups(Call(8, 3, kSig), 4, 2),
     kX,
     Minus2(kB),
     {6, 7, 1},
     {.106507, .653196, .240297}},
    {"D1",
     "F6",
     Groups(Call(8, 2, kSig), 2, 1),
     {2, 2, -2, -2, 1.5f, 1.25f, -1, -1},
     std::vector<float>(8),
     {0, 1},
     {.5, .5}},
    {"D2",
     "F12",
     Groups(Call(8, 2, kSig), 2, 1),
     {2, 2, -2, -2, 1.5f, 1.25f, -1, -1},
     std::vector<float>(8),
     {4, 5},
     {.512626, .487374}},
    {"E1", "F1", Call(8, 2, kSoft), kX, {}, {2, 5}, {.622459, .377541}},
    {"E1", "F4", Call(8, 2, kSoft), kX, {}, {2, 5}, {.622459, .377541}},
    {"E1", "F14", Call(8, 2, kSoft), kX, {}, {2, 5}, {.622459, .377541}},
    {"E1", "vllm-topk", Call(8, 2, kSoft), kX, {}, {2, 5}, {.622459, .377541}},
    {"E2", "F1", Call(8, 2, kSoft, false), kX, {}, {2, 5}, {.396589, .240543}},
    {"E2 defect", "F4", Call(8, 2, kSoft, false), kX, {}, {2, 5}, {2.0, 1.5}},
    {"E3", "hf-ernie", Call(8, 3, kSoft), kX, kB, {6, 1, 7}, {.042010, .114195, .843795}},
    {"E3", "vllm-bias", Call(8, 3, kSoft), kX, kB, {6, 1, 7}, {.042010, .114195, .843795}},
    {"E4", "F1", Call(8, 3, kSoft), kX, kB, {2, 7, 5}, {.506278, .254573, .239149}},
    {"E4", "F12", Call(8, 3, kSoft), kX, kB, {2, 7, 5}, {.506278, .254573, .239149}},
    {"E5",
     "F5",
     Groups(Call(8, 3, kSoft, false), 4, 2),
     kX,
     {},
     {2, 5, 3},
     {.396589, .240543, .068917}},
    {"E5",
     "vllm-grouped",
     Groups(Call(8, 3, kSoft, false), 4, 2),
     kX,
     {},
     {2, 5, 3},
     {.396589, .240543, .068917}},
    {"F", "F8", Call(8, 3, kSqrt), kX, kB, {7, 2, 6}, {.387070, .492595, .120335}},
    {"F", "F12", Call(8, 3, kSqrt), kX, kB, {7, 2, 6}, {.387070, .492595, .120335}},
    {"G",
     "F6",
     Call(8, 3, kSig),
     {1, 0, 1, 1, 0, -1, 0, 1},
     std::vector<float>(8),
     {0, 2, 3},
     {1. / 3, 1. / 3, 1. / 3}},
    {"H", "F13", Call(8, 1, kSig), kX, {}, {2}, {.880797}},
    {"I", "F4", Call(8, 4, kSoft), kX, {}, {2, 5, 7, 0}, {.455054, .276004, .167405, .101536}},
    {"I",
     "llama.cpp-softmax-weight",
     Call(8, 4, kSoft),
     kX,
     {},
     {2, 5, 7, 0},
     {.455054, .276004, .167405, .101536}},
    {"I",
     "trtllm-renormalize",
     Call(8, 4, kSoft),
     kX,
     {},
     {2, 5, 7, 0},
     {.455054, .276004, .167405, .101536}},
    {"J",
     "llama.cpp",
     Call(4, 2, kSig),
     {-20, -21, -22, -23},
     {},
     {0, 1},
     {3.376994e-5, 1.242327e-5}},
    {"J plain",
     "ik_llama.cpp",
     Call(4, 2, kSig),
     {-20, -21, -22, -23},
     {},
     {0, 1},
     {.731059, .268941}},
    {"K", "F6-s4", Call(4, 2, kSig), {-200, -200, -200, -200}, {}, {0, 1}, {0, 0}},
    {"K", "F12", Call(4, 2, kSig), {-200, -200, -200, -200}, {}, {0, 1}, {0, 0}},
    {"K", "vllm-grouped-cuda", Call(4, 2, kSig), {-200, -200, -200, -200}, {}, {0, 1}, {0, 0}},
    {"K", "carpool", Call(4, 2, kSig), {-200, -200, -200, -200}, {}, {0, 1}, {0, 0}},
    {"K plain", "F6", Call(4, 2, kSig), {-200, -200, -200, -200}, {}, {0, 1}, {NAN, NAN}},
    {"L fp32", "F6", Call(4, 1, kSig), {5.0f, 5.03125f, -1, -1}, std::vector<float>(4), {1}, {1}},
    {"L bf16",
     "F6",
     Logits(Call(4, 1, kSig), GateNumber::kBF16),
     {5.0f, 5.03125f, -1, -1},
     std::vector<float>(4),
     {0},
     {1}},
};

TEST(GoldenVectorTest, EveryFunctionEveryVector) {
  for (const Vector& v : kVectors) {
    SCOPED_TRACE(std::string(v.name) + " " + v.function);
    GateCall call = v.call;
    call.has_bias = !v.b.empty();
    auto function = FindGateFunction(v.function);
    ASSERT_TRUE(function) << function.error().message;
    auto gate = MakeGate(**function, call);
    ASSERT_TRUE(gate) << gate.error().message;
    TestStep step{v.x.size(), v.x, v.b, {RowInfo{}}};
    const TestResult got = RouteOnce(*gate, "vanilla", step);
    EXPECT_EQ(got.ids[0], v.ids);
    ASSERT_EQ(got.weights[0].size(), v.weights.size());
    for (size_t i = 0; i < v.weights.size(); ++i) {
      if (std::isnan(v.weights[i])) {
        EXPECT_TRUE(std::isnan(got.weights[0][i]));
      } else {
        EXPECT_NEAR(got.weights[0][i], v.weights[i], v.weights[i] < 1e-3 ? 1e-11 : 1e-6);
      }
    }
  }
}

TEST(GoldenVectorTest, ZeroMaskDefect) {  // C2
  GateSpec gate = TestGate(8, 3, 4, 2);
  gate.scale = 1;
  gate.group_mask = GroupMask::kZero;
  const TestStep step{8, kX, Minus2(kB), {RowInfo{}}};
  const TestResult got = RouteOnce(gate, "vanilla", step);
  EXPECT_THAT(got.ids[0], ::testing::ElementsAre(2, 3, 4));
  const double want[] = {.483818, .308801, .207381};
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got.weights[0][i], want[i], 1e-6);
}

TEST(GoldenVectorTest, ScoresAndChoices) {
  struct {
    GateActivation activation;
    double want[8];
  } const cases[] = {
      {kSig, {.622459, .268941, .880797, .562177, .377541, .817574, .119203, .731059}},
      {kSoft, {.088491, .019745, .396589, .068917, .032554, .240543, .007264, .145897}},
      {kSqrt, {.986953, .559698, 1.458399, .908812, .688532, 1.304382, .356270, 1.145976}},
  };
  for (const auto& c : cases) {
    GateSpec gate = TestGate(8, 3, 1, 1, c.activation, true);
    alignas(64) float logit[16], score[16], choice[16];
    alignas(64) uint32_t key[16];
    EXPECT_EQ(ScoreRow(gate, kX.data(), kB.data(), {logit, score, choice, key, nullptr}), 0u);
    for (size_t e = 0; e < 8; ++e) {
      EXPECT_NEAR(score[e], c.want[e], 6e-7);
      EXPECT_EQ(choice[e], score[e] + kB[e]);
      EXPECT_EQ(key[e + 8], 0u);
    }
  }
}

TEST(GoldenVectorTest, SmartExpertReduction) {  // S
  GateSpec gate = TestGate(8, 4, 1, 1, kSoft, false);
  const TestStep step{8, kX, {}, {RowInfo{}}};
  EXPECT_THAT(RouteOnce(gate, "ser:kmin=1,t=0.4", step).ids[0], ::testing::ElementsAre(2, 5));
  EXPECT_THAT(RouteOnce(gate, "ser:kmin=3,t=0.4", step).ids[0], ::testing::ElementsAre(2, 5, 7));
  EXPECT_THAT(RouteOnce(gate, "ser:kmin=2,t=1", step).ids[0], ::testing::ElementsAre(2, 5));
}

TEST(GateFunctionTest, ErrorsNameTheField) {
  auto error = [](const char* function, const GateCall& call) {
    auto gate = MakeGate(**FindGateFunction(function), call);
    return gate ? std::string() : gate.error().message;
  };
  EXPECT_THAT(error("F6", Call(8, 3, kSoft)), ::testing::HasSubstr("scoring: F6"));
  EXPECT_THAT(error("F2", Groups(Call(8, 2, kSig), 4, 2)), ::testing::HasSubstr("no group limit"));
  EXPECT_THAT(error("F6", Groups(Call(8, 2, kSig), 3, 2)), ::testing::HasSubstr("num_groups"));
  auto unknown = FindGateFunction("F99");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, ::testing::HasSubstr("known: F1, F2"));
}

}  // namespace
}  // namespace carpool
