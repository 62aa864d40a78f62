#include "lab/auto_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace carpool {
namespace {

using ::testing::HasSubstr;

ModelConfig Config() {
  ModelConfig c;
  c.model_type = "glm_moe_dsa";
  c.num_layers = 6;
  c.hidden = 256;
  c.gate.num_experts = 128;
  c.gate.top_k = 8;
  return c;
}

SweepPoint Point(size_t batch, const char* routing, double t, double kl) {
  SweepPoint p;
  p.batch = batch;
  p.routing = routing;
  p.assignments = static_cast<double>(batch) * 8;
  p.distinct_experts = p.distinct_experts_free = t;
  p.kl_mean = kl;
  p.kl_p99 = 5 * kl;
  return p;
}

Calibration Example() {
  Calibration c;
  c.fingerprint = MakeFingerprint(Config(), {}, {});
  c.budget = {0.02, 1.0};
  c.points = {Point(4, "vanilla", 29, 0),       Point(4, "oea:k0=5", 20, 0.015),
              Point(4, "oea:k0=3", 12, 0.06),   Point(16, "vanilla", 82, 0),
              Point(16, "oea:k0=5", 60, 0.008), Point(16, "oea:k0=4", 50, 0.018),
              Point(16, "oea:k0=3", 39, 0.05)};
  c.recommended = {c.points[3]};
  c.fit = {0.1, 5.0, 20.0, 0.99};
  c.has_fit = true;
  return c;
}

std::string Settle(AutoPolicy& policy, size_t rows, int steps = 20) {
  std::string text;
  for (int i = 0; i < steps; ++i) text = PolicyText(*policy.Choose(rows, {}));
  return text;
}

TEST(AutoPolicy, PicksPerBatchSizeWithinTheBudget) {
  auto policy = AutoPolicy::Make(Example(), std::nullopt, Config());
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(Settle(**policy, 1), "vanilla");
  EXPECT_EQ(Settle(**policy, 16), "oea:k0=4");
  EXPECT_EQ(Settle(**policy, 40), "oea:k0=4");
  EXPECT_EQ(Settle(**policy, 9), "oea:k0=5");  // judged as a batch of 4
  auto tight = AutoPolicy::Make(Example(), 0.01, Config());
  ASSERT_TRUE(tight);
  EXPECT_EQ(Settle(**tight, 16), "oea:k0=5");
  EXPECT_EQ(Settle(**tight, 4), "vanilla");
}

TEST(AutoPolicy, SwitchesAfterAWhileButLeavesTheBudgetAtOnce) {
  auto policy = AutoPolicy::Make(Example(), std::nullopt, Config());
  ASSERT_TRUE(policy);
  EXPECT_EQ(Settle(**policy, 16, 7), "vanilla");
  EXPECT_EQ(Settle(**policy, 16, 1), "oea:k0=4");
  EXPECT_EQ(Settle(**policy, 15, 1), "oea:k0=5");  // k0=4 is not calibrated for fewer than 16
  EXPECT_EQ(Settle(**policy, 3, 1), "vanilla");
  EXPECT_EQ((*policy)->Report().changes, 3u);
  // A batch size that flickers does not make the policy flicker.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Settle(**policy, i % 2 == 0 ? 16 : 4, 1), "vanilla");
}

TEST(AutoPolicy, NeverBeyondTheBudget) {
  std::mt19937_64 random(11);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int trial = 0; trial < 200; ++trial) {
    Calibration c = Example();
    c.points.clear();
    for (const size_t batch : {4, 16, 64}) {
      const double most = static_cast<double>(batch) * 4;
      c.points.push_back(Point(batch, "vanilla", most, 0));
      for (const char* policy : {"oea:k0=2", "oea:k0=3/4/5/3/4", "oea:k0=5", "topk:k=5"})
        c.points.push_back(Point(batch, policy, uniform(1, most), uniform(0, 0.04)));
    }
    const double max_kl = uniform(0.005, 0.04);
    auto policy = AutoPolicy::Make(c, max_kl, Config());
    if (!policy) continue;  // nothing within that budget
    StepStats stats;
    stats.moe.resize(1);
    for (int step = 0; step < 300; ++step) {
      const auto rows = static_cast<size_t>(uniform(1, 80));
      // Noise as live timings: whatever the fit says, the budget holds.
      ++stats.steps;
      stats.moe[0].assignments += 8 * rows;
      stats.moe[0].distinct_experts += static_cast<uint64_t>(uniform(8, 120));
      stats.experts_ns += static_cast<uint64_t>(uniform(1e3, 1e6));
      const std::string chosen = PolicyText(*(*policy)->Choose(rows, stats));
      if (chosen == "vanilla") continue;
      const size_t level = rows >= 64 ? 64 : rows >= 16 ? 16 : 4;
      ASSERT_GE(rows, 4u);
      const auto point = std::find_if(c.points.begin(), c.points.end(), [&](const SweepPoint& p) {
        return p.batch == level && p.routing == chosen;
      });
      ASSERT_NE(point, c.points.end());
      ASSERT_LE(point->kl_mean, max_kl);
    }
  }
}

TEST(AutoPolicy, LivesByItsOwnFit) {
  Calibration c = Example();
  c.fit = {0.0, 0.0, 100.0, 0.9};  // a machine on which T does not matter
  auto policy = AutoPolicy::Make(std::move(c), std::nullopt, Config());
  ASSERT_TRUE(policy);
  EXPECT_EQ(Settle(**policy, 16), "vanilla");
  StepStats stats;
  stats.moe.resize(1);
  std::string text;
  for (uint64_t i = 0; i < 80; ++i) {  // steps that say it does
    const uint64_t n = 8 * (4 + i % 13), t = 10 + (i * 7) % 60;
    ++stats.steps;
    stats.moe[0].assignments += n;
    stats.moe[0].distinct_experts += t;
    stats.experts_ns += 1000 * (5 * t + n / 8 + 20);
    text = PolicyText(*(*policy)->Choose(16, stats));
  }
  EXPECT_TRUE((*policy)->Report().fit_is_live);
  EXPECT_NEAR((*policy)->Report().us_per_expert, 5.0, 0.1);
  EXPECT_EQ(text, "oea:k0=4");
}

TEST(AutoPolicy, RefusesWhatItCannotUse) {
  ModelConfig other = Config();
  other.gate.num_experts = 64;
  EXPECT_THAT(AutoPolicy::Make(Example(), std::nullopt, other).error().message,
              HasSubstr("experts = 128"));
  EXPECT_THAT(AutoPolicy::Make(Example(), 1e-6, Config()).error().message, HasSubstr("max_kl"));
}

}  // namespace
}  // namespace carpool
