#include "ops/logit_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/normal_values_testing.h"

namespace carpool {
namespace {

using testing::NormalValues;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LogitRows, OneBadValueAnywhereShows) {
  for (size_t n : {1, 3, 15, 16, 17, 33, 100}) {
    auto x = NormalValues(n, n);
    EXPECT_TRUE(AllFinite(x));
    EXPECT_EQ(ArgMax(x), static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin()));
    for (size_t at = 0; at < n; ++at) {
      const float good = x[at];
      for (const float bad : {NAN, kInfinity, -kInfinity}) {
        x[at] = bad;
        EXPECT_FALSE(AllFinite(x)) << n << " " << at;
        if (std::isnan(bad)) {
          EXPECT_EQ(ArgMax(x), n);
        } else if (bad > 0) {
          EXPECT_EQ(ArgMax(x), at);
        }
      }
      x[at] = good;
    }
  }
  EXPECT_TRUE(AllFinite({}));
  EXPECT_EQ(ArgMax({}), 0u);
}

TEST(LogitRows, LargestOfEqualValuesIsTheFirst) {
  for (size_t n : {2, 16, 20, 64, 65}) {
    for (size_t first = 0; first < n; ++first) {
      std::vector<float> x(n, -1.0f);
      for (size_t i = first; i < n; ++i) x[i] = 2.5f;
      EXPECT_EQ(ArgMax(x), first);
    }
    EXPECT_EQ(ArgMax(std::vector<float>(n, -kInfinity)), n);
    EXPECT_EQ(ArgMax(std::vector<float>(n, -std::numeric_limits<float>::max())), 0u);
  }
}

TEST(LogitRows, ExpIsTheSameWhereverTheRowEnds) {
  const auto x = NormalValues(70, 3);
  for (size_t n = 0; n <= x.size(); ++n) {
    std::vector<float> y(x.begin(), x.begin() + static_cast<ptrdiff_t>(n));
    ExpRow(y, 1.5f, 0.7f);
    for (size_t i = 0; i < n; ++i) {
      const double want = std::exp((static_cast<double>(x[i]) - 1.5) * 0.7);
      EXPECT_NEAR(y[i], want, 2e-6 * want);
    }
  }
  std::vector<float> low = {-kInfinity, -1e30f, 0.0f};
  ExpRow(low, 0.0f, 1.0f);
  EXPECT_EQ(low[0], 0.0f);
  EXPECT_EQ(low[1], 0.0f);
  EXPECT_EQ(low[2], 1.0f);
}

}  // namespace
}  // namespace carpool
