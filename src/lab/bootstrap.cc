#include "lab/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/check.h"
#include "lab/statistics.h"

namespace carpool {
namespace {

constexpr size_t kResamples = 4000;

/// 97.5 % point of Student's t with `dof` degrees of freedom: the Cornish-Fisher expansion, within
/// 0.3 % from 4 degrees on.
double StudentT975(double dof) {
  const double z = 1.959964;
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * dof) + (5 * z5 + 16 * z3 + 3 * z) / (96 * dof * dof) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * dof * dof * dof);
}

double Mean(std::span<const double> values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

}  // namespace

Interval BootstrapMean(std::span<const double> values, uint64_t seed) {
  CARPOOL_CHECK(values.size() >= kMinForInterval);
  const auto n = static_cast<double>(values.size());
  std::mt19937_64 random(seed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[random() % values.size()];
    mean = sum / n;
  }
  const double z = StudentT975(n - 1) * std::sqrt(n / (n - 1));
  const double tail = 0.5 * std::erfc(z / std::sqrt(2.0));
  Interval interval{Mean(values), Quantile(means, tail), Quantile(means, 1.0 - tail)};
  // Equal values differ from their resampled means by rounding only.
  interval.low = std::min(interval.low, interval.value);
  interval.high = std::max(interval.high, interval.value);
  return interval;
}

Interval Exponentiate(const Interval& log) {
  return {std::exp(log.value), std::exp(log.low), std::exp(log.high)};
}

}  // namespace carpool
