// How sure a mean of few paired measurements is.
#pragma once

#include <cstdint>
#include <span>

namespace carpool {

struct Interval {
  double value = 0.0, low = 0.0, high = 0.0;
  bool Covers(double x) const { return low <= x && x <= high; }
};

/// The fewest values an interval is given for.
inline constexpr size_t kMinForInterval = 5;

/// Mean of `values` with a 95 % interval from 4,000 bootstrap resamples. Percentiles of resampled
/// means are too narrow for few values, so they are taken further out: the share of a normal
/// distribution beyond t(0.975, n-1) sqrt(n/(n-1)) (Hesterberg 2015, "expanded percentile
/// interval"). Same seed, same interval. At least kMinForInterval values.
Interval BootstrapMean(std::span<const double> values, uint64_t seed);

/// exp of all three: the geometric mean of ratios whose logarithms were given.
Interval Exponentiate(const Interval& log);

}  // namespace carpool
