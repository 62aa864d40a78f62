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
/// 0.3 % from 4 degrees on, 7 % at 2.
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

size_t BlockLength(size_t n) {
  return n < 8 ? 1 : static_cast<size_t>(std::lround(std::cbrt(static_cast<double>(n))));
}

Interval BootstrapMean(std::span<const double> values, uint64_t seed, size_t block) {
  const size_t n = values.size();
  CARPOOL_CHECK(n >= kMinForInterval && block >= 1 && n >= 3 * block);
  std::mt19937_64 random(seed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double sum = 0.0;
    for (size_t i = 0, start = 0; i < n; ++i) {
      if (i % block == 0) start = random() % n;
      sum += values[(start + i % block) % n];
    }
    mean = sum / static_cast<double>(n);
  }
  const double blocks = static_cast<double>(n) / static_cast<double>(block);
  const double z = StudentT975(blocks - 1) * std::sqrt(blocks / (blocks - 1));
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
