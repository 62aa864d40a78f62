#include "lab/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carpool {
namespace {

using ::testing::HasSubstr;

PlanOptions Options(const char* shape, const char* hardware) {
  PlanOptions o;
  o.shape = *FindMoeShape(shape);
  o.hardware = *FindHardware(hardware);
  o.policies = {*ParsePolicy("vanilla"), *ParsePolicy("oea:k0=3")};
  return o;
}

TEST(Plan, RandomRoutingMeetsTheUniformFormula) {
  PlanOptions o = Options("glm-5", "epyc-9005-2s");
  o.batches = {1, 4, 16, 32};
  const auto plan = MakePlan(o);
  ASSERT_TRUE(plan) << plan.error().message;
  const double expected[] = {8, 30.5, 102.0, 163.3};  // 256 (1 - (1 - 8/256)^B)
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_NEAR(plan->rows[2 * b].distinct_experts, expected[b], 0.03 * expected[b]);
    EXPECT_NEAR(plan->rows[2 * b].uniform_bound, expected[b], 0.06);
  }
  EXPECT_NEAR(plan->rows[5].distinct_experts, 44.0, 2.0);
  EXPECT_EQ(plan->rows[0].bound, "memory");
}

TEST(Plan, BytesAreCountedByHand) {
  PlanOptions o = Options("qwen3-30b", "h100");
  o.expert_format = WeightFormat::kBF16;
  o.batches = {1};
  o.layer_only = true;
  const auto plan = MakePlan(o);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->expert_bytes, 3.0 * 2048 * 768 * 2);
  EXPECT_NEAR(plan->rows[0].bytes, 8 * plan->expert_bytes + 128 * 2048 * 2, 1.0);
  EXPECT_NEAR(plan->rows[1].distinct_experts, 3.0, 1e-9);  // one row alone: plain top-3
}

TEST(Plan, PredictsThePublishedH100Layer) {
  // OEA paper, Qwen3-30B, bf16, one H100, B = 16: T 48.8 took 175.7 us, T 25.1 took 106.8 us.
  PlanOptions o = Options("qwen3-30b", "h100");
  o.expert_format = WeightFormat::kBF16;
  o.batches = {16};
  o.measured_t = {48.8, 25.1};
  o.layer_only = true;
  const auto plan = MakePlan(o);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_NEAR(plan->rows[0].moe_us, 175.7, 0.15 * 175.7);
  EXPECT_NEAR(plan->rows[1].moe_us, 106.8, 0.15 * 106.8);
}

TEST(Plan, SaysWhenTilesMakeSmallExpertsComputeBound) {
  PlanOptions o = Options("glm-5", "rtx-pro-6000-x8");
  o.batches = {16};
  const auto plan = MakePlan(o);
  ASSERT_TRUE(plan);
  EXPECT_LT(plan->balance_rows, 128);  // one padded tile takes longer than reading the expert
  EXPECT_THAT(plan->sentence, HasSubstr("rtx-pro-6000-x8"));
  o.hardware.tile_rows = 16;
  const auto small = MakePlan(o);
  EXPECT_LT(small->rows[0].moe_us, plan->rows[0].moe_us);
}

TEST(Plan, FitsAndCacheAreFlagged) {
  EXPECT_FALSE(MakePlan(Options("glm-5", "h100"))->fits);
  EXPECT_TRUE(MakePlan(Options("glm-5", "epyc-9005-2s"))->fits);
  EXPECT_TRUE(MakePlan(Options("demo", "epyc-9005-2s"))->cache_resident);
  EXPECT_FALSE(MakePlan(Options("glm-5", "epyc-9005-2s"))->cache_resident);
}

TEST(Plan, BadInput) {
  const auto hardware = FindHardware("abacus");
  ASSERT_FALSE(hardware);
  EXPECT_THAT(hardware.error().message, HasSubstr("h200"));
  PlanOptions o = Options("glm-5", "h200-x8");
  o.measured_t = {10.0};
  EXPECT_THAT(MakePlan(o).error().message, HasSubstr("wanted 14 numbers"));
  o.batches = {2};
  o.measured_t = {16.0, 0.5};
  EXPECT_THAT(MakePlan(o).error().message, HasSubstr("1 to 256"));
}

TEST(Hardware, RatesAreInterpolated) {
  Hardware h;
  h.rate_rows = {1, 2, 4};
  h.rate_gmacs = {10, 16, 20};
  EXPECT_EQ(Gmacs(h, WeightFormat::kNVFP4, 1), 10);
  EXPECT_EQ(Gmacs(h, WeightFormat::kNVFP4, 3), 18);
  EXPECT_EQ(Gmacs(h, WeightFormat::kNVFP4, 9), 20);
}

}  // namespace
}  // namespace carpool
