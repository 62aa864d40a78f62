// Scans of long rows: what a step does with every logit.
#pragma once

#include <cstddef>
#include <span>

namespace carpool {

/// No infinity and no NaN.
bool AllFinite(std::span<const float> x);

/// Index of the largest value, the lowest of equal ones; x.size() when a value is NaN or none is
/// above -infinity.
size_t ArgMax(std::span<const float> x);

/// x[i] = exp((x[i] - shift) * scale): the weights of a softmax when shift is the largest.
void ExpRow(std::span<float> x, float shift, float scale);

}  // namespace carpool
