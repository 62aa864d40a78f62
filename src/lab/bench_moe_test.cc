#include "lab/bench_moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "lab/roofline_svg.h"

namespace carpool {
namespace {

BenchMoeOptions Small() {
  BenchMoeOptions o;
  o.shape = *FindMoeShape("demo");
  for (const char* policy : {"vanilla", "oea:k0=3", "oea:k0=5"})
    o.policies.push_back(*ParsePolicy(policy));
  o.threads = 2;
  o.batches = {1, 16};
  o.seconds = 0.05;
  o.membw_bytes = size_t{256} << 20;
  return o;
}

TEST(BenchMoe, RowsAreConsistentWithTheirDefinitions) {
  const auto report = BenchMoe(Small());
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->rows.size(), 6u);
  for (const auto& r : report->rows) {
    EXPECT_GE(r.steps, 7u);
    EXPECT_LE(r.us_p10, r.us_median);
    EXPECT_LE(r.us_median, r.us_p90);
    EXPECT_NEAR(r.tokens_per_s, static_cast<double>(r.batch) / r.us_median * 1e6,
                1e-6 * r.tokens_per_s);
    EXPECT_NEAR(r.fraction_of_membw, r.gbytes_per_s / report->membw_gbytes_per_s, 1e-9);
  }
  EXPECT_EQ(report->rows[0].distinct_experts, 8.0);  // one row, vanilla
  EXPECT_EQ(report->rows[1].distinct_experts, 3.0);  // one row, oea:k0=3 has nobody to ride with
  EXPECT_NEAR(report->rows[3].distinct_experts, 128 * (1 - std::pow(1 - 8.0 / 128, 16)),
              4.0);  // random routing
  EXPECT_LT(report->rows[4].distinct_experts, 0.6 * report->rows[3].distinct_experts);
  ASSERT_EQ(report->fits.size(), 2u);
  const ArithmeticRate arithmetic[] = {{1, 100.0}, {8, 200.0}};
  const std::string svg = RooflineSvg(*report, "a<b", arithmetic, 0.5625);
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  EXPECT_NE(svg.find("<polyline"), std::string::npos);
}

TEST(BenchMoe, SkewedAndCorrelatedLogitsShrinkTheUnion) {
  BenchMoeOptions o = Small();
  o.batches = {16};
  o.logits = *ParseLogitGenerator("skewed:popularity=2,topic=1");
  const auto skewed = BenchMoe(o);
  ASSERT_TRUE(skewed.has_value());
  EXPECT_LT(skewed->rows[0].distinct_experts, 60.0);
}

TEST(BenchMoe, ExpertsAloneLeaveOutWhatIsAlwaysReadAndStepsAreTold) {
  BenchMoeOptions o = Small();
  o.batches = {16};
  o.experts_only = true;
  std::vector<double> us, distinct;
  o.on_step = [&](const BenchMoeStep& step) {
    if (step.routing != "oea:k0=3") return;
    EXPECT_EQ(step.batch, 16u);
    ASSERT_EQ(step.ids.rows, 16u);
    std::set<int32_t> experts;
    for (size_t r = 0; r < 16; ++r) {
      for (const int32_t id : step.ids.RowSpan(r)) {
        EXPECT_LT(id, 128);
        if (id >= 0) experts.insert(id);
      }
    }
    us.push_back(step.us);
    distinct.push_back(static_cast<double>(experts.size()));
  };
  const auto report = BenchMoe(o);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->bytes_always, 0u);
  const BenchMoeRow& row = report->rows[1];
  ASSERT_EQ(us.size(), row.steps);
  EXPECT_EQ(Quantile(us, 0.5), row.us_median);
  EXPECT_NEAR(
      std::accumulate(distinct.begin(), distinct.end(), 0.0) / static_cast<double>(us.size()),
      row.distinct_experts, 1e-9);
}

TEST(LogitGenerator, KnowsItsGrammar) {
  EXPECT_EQ(ParseLogitGenerator("random")->popularity, 0.0f);
  EXPECT_EQ(ParseLogitGenerator("skewed")->popularity, 1.0f);
  EXPECT_EQ(ParseLogitGenerator("skewed:topic=0.5")->topic, 0.5f);
  for (const char* bad : {"", "skew", "skewed:", "skewed:topic", "skewed:topic=x", "skewed:heat=1",
                          "skewed:topic=-1"}) {
    EXPECT_FALSE(ParseLogitGenerator(bad).has_value()) << bad;
  }
}

TEST(FitLine, FindsAStraightLineAndItsSpread) {
  const LinearFit exact = FitLine({1, 2, 3, 4}, {5, 7, 9, 11});
  EXPECT_NEAR(exact.intercept, 3.0, 1e-12);
  EXPECT_NEAR(exact.slope, 2.0, 1e-12);
  EXPECT_NEAR(exact.r2, 1.0, 1e-12);
  EXPECT_LT(FitLine({1, 2, 3, 4}, {5, 9, 6, 8}).r2, 0.5);
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2.0);
  EXPECT_EQ(Quantile({4, 1}, 0.25), 1.75);
}

}  // namespace
}  // namespace carpool
