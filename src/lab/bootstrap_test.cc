#include "lab/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace carpool {
namespace {

TEST(Bootstrap, SameSeedSameIntervalAroundTheMean) {
  const std::vector<double> values = {1.0, 2.0, 4.0, 3.0, 2.5, 1.5};
  const Interval a = BootstrapMean(values, 7), b = BootstrapMean(values, 7);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_NEAR(a.value, 14.0 / 6, 1e-12);
  EXPECT_LT(a.low, a.value);
  EXPECT_GT(a.high, a.value);
}

TEST(Bootstrap, EqualValuesGiveAPoint) {
  const Interval i = BootstrapMean(std::vector<double>(12, 0.1), 1);
  EXPECT_NEAR(i.low, 0.1, 1e-15);
  EXPECT_NEAR(i.high, 0.1, 1e-15);
  EXPECT_TRUE(i.Covers(i.value));
}

TEST(Bootstrap, CoversTheTruthNineteenTimesInTwenty) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(0.0, 0.02);
  constexpr int kTrials = 400;
  for (const size_t n : {size_t{5}, size_t{12}, size_t{30}}) {
    int covered = 0;
    for (int t = 0; t < kTrials; ++t) {
      std::vector<double> values(n);
      for (double& v : values) v = normal(random);
      covered += BootstrapMean(values, static_cast<uint64_t>(t)).Covers(0.0);
    }
    // 95 % of 400 is 380; four standard deviations are 17. With five values the resamples are too
    // coarse for more.
    EXPECT_GE(covered, n == 5 ? 350 : 363) << n;
    EXPECT_LE(covered, 397) << n;
  }
}

TEST(Bootstrap, BlocksKeepNeighboursTogether) {
  // Each value carries 0.4 of the one before: resampled one by one, intervals are too narrow.
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0.0, 1.0);
  constexpr int kTrials = 400;
  for (const size_t n : {size_t{12}, size_t{24}}) {
    int alone = 0, blocks = 0;
    for (int t = 0; t < kTrials; ++t) {
      std::vector<double> values(n);
      double last = normal(random);
      for (double& v : values) v = last = 0.4 * last + normal(random);
      alone += BootstrapMean(values, static_cast<uint64_t>(t)).Covers(0.0);
      blocks += BootstrapMean(values, static_cast<uint64_t>(t), BlockLength(n)).Covers(0.0);
    }
    EXPECT_GT(blocks, alone) << n;
    EXPECT_GE(blocks, 350) << n;
  }
  EXPECT_EQ(BlockLength(5), 1u);
  EXPECT_EQ(BlockLength(12), 2u);
  EXPECT_EQ(BlockLength(27), 3u);
}

TEST(Bootstrap, ExponentiateIsMonotone) {
  const Interval i = Exponentiate({std::log(0.9), std::log(0.8), std::log(1.1)});
  EXPECT_NEAR(i.value, 0.9, 1e-12);
  EXPECT_NEAR(i.low, 0.8, 1e-12);
  EXPECT_NEAR(i.high, 1.1, 1e-12);
}

}  // namespace
}  // namespace carpool
