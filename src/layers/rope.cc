#include "layers/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace carpool {
namespace {

/// How much of a pair's frequency is divided by the factor: 0 for the fast pairs, 1 for the slow.
double YarnRamp(const RopeSpec& r, double pair) {
  const auto dim = static_cast<double>(r.dim);
  // The pair that turns `turns` times within the original context.
  const auto find = [&](double turns) {
    return dim * std::log(r.original_context / (2.0 * std::numbers::pi * turns)) /
           (2.0 * std::log(r.theta));
  };
  double low = find(r.beta_fast), high = find(r.beta_slow);
  if (r.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  return std::clamp((pair - low) / (high - low), 0.0, 1.0);
}

double Llama3Frequency(const RopeSpec& r, double frequency) {
  const double turns = r.original_context * frequency / (2.0 * std::numbers::pi);
  if (turns < r.low_freq_factor) return frequency / r.factor;
  if (turns > r.high_freq_factor) return frequency;
  const double smooth = (turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
  return (1.0 - smooth) * frequency / r.factor + smooth * frequency;
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeSpec& r) {
  std::vector<float> frequencies;
  for (size_t i = 0; i < r.dim / 2; ++i) {
    const auto pair = static_cast<double>(i);
    double f = std::pow(r.theta, -2.0 * pair / static_cast<double>(r.dim));
    switch (r.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        f /= r.factor;
        break;
      case RopeScaling::kYarn: {
        const double ramp = YarnRamp(r, pair);
        f = f * (1.0 - ramp) + f / r.factor * ramp;
        break;
      }
      case RopeScaling::kLlama3:
        f = Llama3Frequency(r, f);
        break;
    }
    frequencies.push_back(static_cast<float>(f));
  }
  return frequencies;
}

double YarnScale(double factor, double m) {
  return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

}  // namespace carpool
