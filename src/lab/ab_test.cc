#include "lab/ab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace carpool {
namespace {

using ::testing::HasSubstr;

GateSpec Gate() {
  GateSpec gate;
  gate.num_experts = 128;
  gate.top_k = 8;
  return gate;
}

std::string Why(const char* a, const char* b, size_t batch = 16) {
  const auto baseline = ParsePolicy(a), candidate = ParsePolicy(b);
  EXPECT_TRUE(baseline && candidate) << a << " " << b;
  return WhyNoDifference(**baseline, **candidate, Gate(), batch);
}

TEST(WhyNoDifference, NamesPairsThatRouteAlike) {
  EXPECT_THAT(Why("vanilla", "oea:k0=8"), HasSubstr("own routing"));
  EXPECT_THAT(Why("vanilla", "topk:k=8"), HasSubstr("topk:k=8"));
  EXPECT_THAT(Why("topk:k=8", "near:delta=0"), HasSubstr("near"));
  EXPECT_THAT(Why("vanilla", "oea:k0=3,min_rows=32"), HasSubstr("32 rows"));
  EXPECT_THAT(Why("vanilla", "lynx:budget=16", 2), HasSubstr("covers everything 2 rows"));
}

TEST(WhyNoDifference, SilentWhereTheyCanDifferOrAreTheSame) {
  EXPECT_EQ(Why("vanilla", "vanilla"), "");
  EXPECT_EQ(Why("vanilla", "exact"), "");
  EXPECT_EQ(Why("oea:k0=3", "oea:k0=3"), "");
  EXPECT_EQ(Why("vanilla", "oea:k0=3"), "");
  EXPECT_EQ(Why("vanilla", "oea:k0=8,kmax=12"), "");
  EXPECT_EQ(Why("vanilla", "oea:k0=8,p=0.5"), "");
  EXPECT_EQ(Why("vanilla", "lynx:budget=16", 3), "");
  EXPECT_EQ(Why("oea:k0=3", "oea:k0=4"), "");
}

TEST(KlDivergence, MatchesTheDefinition) {
  const std::vector<float> c = {0.5f, -1.0f, 2.0f, 0.0f}, b = {0.0f, 1.0f, 1.5f, -3.0f};
  double zc = 0.0, zb = 0.0, expected = 0.0;
  for (size_t i = 0; i < c.size(); ++i) {
    zc += std::exp(static_cast<double>(c[i]));
    zb += std::exp(static_cast<double>(b[i]));
  }
  for (size_t i = 0; i < c.size(); ++i) {
    const double lc = static_cast<double>(c[i]) - std::log(zc);
    const double lb = static_cast<double>(b[i]) - std::log(zb);
    expected += std::exp(lc) * (lc - lb);
  }
  EXPECT_NEAR(KlDivergence(c, b), expected, 1e-6);
  EXPECT_GT(std::abs(KlDivergence(b, c) - expected), 1e-3);  // not symmetric: the order matters
  EXPECT_EQ(KlDivergence(c, c), 0.0);
}

TEST(PairedRatio, DriftThatHitsBothCancels) {
  // Rounds of A B B A under a machine that slows down by 1 % per block; B needs 20 % less.
  std::vector<double> a, b;
  double speed = 100.0;
  for (int round = 0; round < 8; ++round) {
    double block[4];
    for (double& t : block) t = speed *= 1.01;
    a.insert(a.end(), {block[0], block[3]});
    b.insert(b.end(), {0.8 * block[1], 0.8 * block[2]});
  }
  const Interval ratio = PairedRatio(b, a, 1);
  EXPECT_NEAR(ratio.value, 0.8, 1e-9);
  EXPECT_NEAR(ratio.low, 0.8, 1e-9);
}

}  // namespace
}  // namespace carpool
