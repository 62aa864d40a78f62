// Rotary position embedding: the frequencies of a model and how context extension bends them
// (models.md 2.10).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace carpool {

/// kYarn: arXiv:2309.00071. kLlama3: low frequencies slowed down, a smooth band in between.
enum class RopeScaling : uint8_t { kNone, kLinear, kYarn, kLlama3 };

struct RopeSpec {
  size_t dim = 0;  // rotated numbers per head, even; 0: no rope
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_context = 0.0;  // kYarn, kLlama3
  double beta_fast = 32.0;        // kYarn
  double beta_slow = 1.0;
  bool truncate = true;          // kYarn: whole dimensions bound the ramp
  double low_freq_factor = 1.0;  // kLlama3
  double high_freq_factor = 4.0;
  double attention_factor = 1.0;  // multiplies cos and sin
};

/// Radians per position of every pair, [dim / 2].
std::vector<float> RopeFrequencies(const RopeSpec& rope);

/// The attention temperature of YaRN: 0.1 m ln(factor) + 1, 1 without extension.
double YarnScale(double factor, double m);

}  // namespace carpool
