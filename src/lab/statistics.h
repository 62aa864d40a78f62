// Summaries of measured samples.
#pragma once

#include <vector>

namespace carpool {

/// Value at quantile q in [0, 1] (0.5 = median), linear between neighbours. `values` is not empty.
double Quantile(std::vector<double> values, double q);

/// y = intercept + slope * x by least squares; r2 is the share of y's variance it explains.
struct LinearFit {
  double intercept = 0.0, slope = 0.0, r2 = 0.0;
};
LinearFit FitLine(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace carpool
