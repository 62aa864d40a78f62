#include "lab/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace carpool {

double Quantile(std::vector<double> values, double q) {
  CARPOOL_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

LinearFit FitLine(const std::vector<double>& x, const std::vector<double>& y) {
  CARPOOL_CHECK(x.size() == y.size() && !x.empty());
  const auto n = static_cast<double>(x.size());
  double mean_x = 0.0, mean_y = 0.0;
  for (size_t i = 0; i < x.size(); ++i) mean_x += x[i] / n, mean_y += y[i] / n;
  double xx = 0.0, xy = 0.0, yy = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  LinearFit fit;
  fit.slope = xx > 0.0 ? xy / xx : 0.0;
  fit.intercept = mean_y - fit.slope * mean_x;
  fit.r2 = xx > 0.0 && yy > 0.0 ? xy * xy / (xx * yy) : 0.0;
  return fit;
}

}  // namespace carpool
