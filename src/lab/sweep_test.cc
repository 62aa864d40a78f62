#include "lab/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file_writer.h"
#include "lab/html_page.h"
#include "lab/report.h"
#include "lab/svg_plot.h"
#include "lab/sweep_file.h"

namespace carpool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SweepPoint Point(size_t batch, const char* routing, double t, double ce, double kl = 0.0,
                 Interval ratio = {1.0, 1.0, 1.0}) {
  SweepPoint p;
  p.batch = batch;
  p.routing = routing;
  p.distinct_experts = p.distinct_experts_free = t;
  p.cross_entropy = ce;
  p.kl_mean = kl;
  p.kl_p99 = 5 * kl;
  p.step_ratio = ratio;
  p.experts_per_row = 8;
  return p;
}

std::vector<std::string> Names(const std::vector<SweepPoint>& points) {
  std::vector<std::string> names;
  for (const auto& p : points) names.push_back(fmt::format("{}@{}", p.routing, p.batch));
  return names;
}

TEST(Sweep, ParetoKeepsWhatNothingBeatsWithinABatchSize) {
  const std::vector<SweepPoint> points = {
      Point(4, "vanilla", 30, 4.00),   Point(16, "vanilla", 80, 4.00),
      Point(16, "oea:k0=5", 60, 4.01), Point(16, "topk:k=5", 60, 4.05),
      Point(16, "oea:k0=3", 40, 4.04), Point(16, "topk:k=3", 39, 4.10)};
  EXPECT_THAT(Names(ParetoFront(points)),
              ElementsAre("vanilla@4", "topk:k=3@16", "oea:k0=3@16", "oea:k0=5@16", "vanilla@16"));
}

TEST(Sweep, RecommendsTheFastestWithinTheBudgetThatIsFasterForSure) {
  const std::vector<SweepPoint> points = {
      Point(1, "vanilla", 8, 4.0),
      Point(1, "topk:k=7", 7, 4.0, 0.001, {0.98, 0.95, 1.01}),  // inside the noise
      Point(16, "vanilla", 80, 4.0),
      Point(16, "oea:k0=6", 65, 4.0, 0.004, {0.90, 0.88, 0.92}),
      Point(16, "oea:k0=5", 60, 4.0, 0.009, {0.85, 0.83, 0.87}),
      Point(16, "oea:k0=3", 40, 4.0, 0.040, {0.70, 0.68, 0.72})};
  EXPECT_THAT(Names(Recommend(points, {0.01, 0.1})), ElementsAre("vanilla@1", "oea:k0=5@16"));
  EXPECT_THAT(Names(Recommend(points, {0.1, 0.03})), ElementsAre("vanilla@1", "oea:k0=6@16"));
  EXPECT_THAT(Names(Recommend(points, {1.0, 1.0})), ElementsAre("vanilla@1", "oea:k0=3@16"));
}

TEST(Sweep, ComparesFamiliesAtEqualT) {
  const std::vector<SweepPoint> points = {
      Point(16, "vanilla", 80, 4.00), Point(16, "oea:k0=5", 60, 4.01),
      Point(16, "oea:k0=3", 40, 4.04), Point(16, "topk:k=5", 60, 4.05),
      Point(16, "topk:k=3", 40, 4.10)};
  EXPECT_THAT(CompareFamilies(points),
              ElementsAre(HasSubstr("lower cross-entropy than topk at 4 of 4")));
}

TEST(LatencyFit, FindsTheCoefficients) {
  std::vector<LatencySample> samples;
  for (const double n : {32.0, 64.0, 128.0})
    for (const double t : {10.0, 25.0, 60.0}) samples.push_back({n, t, 0.2 * n + 3 * t + 7});
  const auto fit = FitLatency(samples);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->a, 0.2, 1e-9);
  EXPECT_NEAR(fit->b, 3.0, 1e-9);
  EXPECT_NEAR(fit->c, 7.0, 1e-8);
  EXPECT_NEAR(fit->r2, 1.0, 1e-12);
  for (auto& s : samples) s.assignments = 64;  // a and c cannot be told apart
  EXPECT_FALSE(FitLatency(samples));
  EXPECT_FALSE(FitLatency(std::vector<LatencySample>(3)));
}

TEST(SweepFile, PointsSurviveAndDamageIsNamed) {
  const auto dir =
      std::filesystem::temp_directory_path() /
      fmt::format("carpool_sweep_{}", ::testing::UnitTest::GetInstance()->random_seed());
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const std::string path = (dir / "points.jsonl").string();
  const SweepFingerprint print = {{"model_type", "x"}, {"seed", 1}};
  ASSERT_TRUE(LoadPoints(path, print)->empty());
  ASSERT_TRUE(AppendPoints(path, print, {Point(16, "vanilla", 80, 4.0)}));
  {
    std::ofstream cut(path, std::ios::app);
    cut << "{\"batch\": 16, \"rou";  // killed while writing
  }
  ASSERT_TRUE(AppendPoints(path, print, {Point(16, "oea:k0=3", 40, 4.04, 0.04, {0.7, 0.6, 0.8})}));
  const auto points = LoadPoints(path, print);
  ASSERT_TRUE(points) << points.error().message;
  ASSERT_EQ(points->size(), 2u);
  EXPECT_EQ((*points)[1].routing, "oea:k0=3");
  EXPECT_EQ((*points)[1].step_ratio.high, 0.8);
  const auto other = LoadPoints(path, {{"model_type", "x"}, {"seed", 2}});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("seed = 1"));
  std::ofstream(path, std::ios::app) << "{\"batch\": 16}\n";
  const auto damaged = LoadPoints(path, print);
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message, HasSubstr("line 4"));

  Calibration c{print, {0.02, 0.2},           *points, {(*points)[1]}, {0.1, 2, 3, 0.99},
                true,  {{16, 2, 3, 0.01, 40}}};
  const std::string file = (dir / "calibration.json").string();
  ASSERT_TRUE(WriteTextFile(file, CalibrationJson(c).dump()));
  const auto loaded = LoadCalibration(file);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->recommended[0].routing, "oea:k0=3");
  EXPECT_EQ(loaded->fit.b, 2);
  ASSERT_EQ(loaded->layers.size(), 1u);
  EXPECT_EQ(loaded->layers[0].k0, 3u);
  ASSERT_TRUE(WriteTextFile(file, "{\"format\": \"carpool-calibration-1\"}"));
  const auto bad = LoadCalibration(file);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(bad.error().message, HasSubstr(file));
  std::filesystem::remove_all(dir);
}

TEST(SvgPlot, RoundTicksCoverTheRange) {
  EXPECT_THAT(RoundTicks(0.3, 9.2, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  const auto same = RoundTicks(5, 5, 5);
  EXPECT_LT(same.front(), 5);
  EXPECT_GT(same.back(), 5);
}

TEST(SvgPlot, EscapesAndSkipsWhatIsNotFinite) {
  const std::string svg =
      RenderSvg({"a < b & c", "x", "y", {{"s\"", {{1, 2}, {2, 1.0 / 0.0}, {3, 4}}, true, true}}});
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("s&quot;"));
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_THAT(RenderSvg({"t", "x", "y", {}}), HasSubstr("no points"));
}

TEST(Csv, QuotesWhatNeedsIt) {
  EXPECT_EQ(RenderCsv({{"a", "oea:k0=3,p=0.9"}, {"say \"x\"", "1"}}),
            "a,\"oea:k0=3,p=0.9\"\n\"say \"\"x\"\"\",1\n");
}

}  // namespace
}  // namespace carpool
