// The latency model of one MoE layer: t = a * assignments + b * T + c, fitted by least squares.
#pragma once

#include <span>

#include "base/result.h"

namespace carpool {

struct LatencySample {
  double assignments = 0.0;  // per layer and step
  double distinct = 0.0;     // T
  double us = 0.0;           // of one layer
};

/// a: arithmetic per (row, expert); b: reading one more expert; c: what every layer pays.
struct LatencyFit {
  double a = 0.0, b = 0.0, c = 0.0;  // us
  double r2 = 0.0;                   // share of the variance explained
  double Predict(double assignments, double distinct) const {
    return a * assignments + b * distinct + c;
  }
};

/// Errors: fewer than 4 samples, or samples in which assignments and T do not vary independently
/// enough to tell a from b.
Result<LatencyFit> FitLatency(std::span<const LatencySample> samples);

}  // namespace carpool
