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

/// Mean of `values` with a 95 % interval from 4,000 bootstrap resamples. Values that follow each
/// other in time disturb each other, so runs of `block` neighbours are resampled together (circular
/// block bootstrap, Politis and Romano 1992); 1 for independent values. Percentiles of resampled
/// means are too narrow for few values, so they are taken further out: with m = n / block, the
/// share of a normal distribution beyond t(0.975, m-1) sqrt(m/(m-1)) (Hesterberg 2015, "expanded
/// percentile interval"). Same seed, same interval. At least kMinForInterval values, and at least
/// three blocks.
Interval BootstrapMean(std::span<const double> values, uint64_t seed, size_t block = 1);

/// Block length for n values in order of time: 1 below 8, else the cube root of n.
size_t BlockLength(size_t n);

/// exp of all three: the geometric mean of ratios whose logarithms were given.
Interval Exponentiate(const Interval& log);

}  // namespace carpool
