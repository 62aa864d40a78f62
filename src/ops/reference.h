// The readable twin of every op: plain loops in double precision, no SIMD, no tricks. The tests'
// oracle.
#pragma once

#include <span>
#include <vector>

#include "base/views.h"

namespace carpool::reference {

/// y = w * x / sqrt(mean(x^2) + eps).
std::vector<double> RmsNorm(std::span<const float> x, std::span<const float> w, double eps);
/// y = (x - mean) / sqrt(variance + eps) * w + b.
std::vector<double> LayerNorm(std::span<const float> x, std::span<const float> w,
                              std::span<const float> b, double eps);
/// silu(gate) * up.
std::vector<double> SiluMul(std::span<const float> gate, std::span<const float> up);
/// Softmax attention of one head over the given keys: q [key_width], keys [n][key_width]; values
/// [n][value_width]. `sink` is one more score of the softmax (-infinity: none).
std::vector<double> Attend(std::span<const float> q, std::span<const float* const> keys,
                           std::span<const float* const> values, size_t value_width, double scale,
                           double sink);
/// sum_h w[h] relu(scale q[h]·key); q [heads, dim], key [dim].
double IndexScore(std::span<const float> q, std::span<const float> w, std::span<const float> key,
                  double scale);
/// Positions of the k largest scores, ascending; ties to the lower position, NaN last.
std::vector<uint32_t> TopPositions(std::span<const float> scores, size_t k);

}  // namespace carpool::reference
