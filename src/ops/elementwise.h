// Row-wise ops: norms, rope, SwiGLU, residual. All in fp32, all with the same bits for a row
// whatever the batch.
#pragma once

#include <span>

#include "base/views.h"

namespace carpool {

/// y[t,:] = w * x[t,:] / sqrt(mean(x[t,:]^2) + eps) (arXiv:1910.07467). x, y: [tokens, n], may
/// alias; w: [n].
void RmsNorm(MatView<const float> x, std::span<const float> w, float eps, MatView<float> y);

/// y[t,:] = (x[t,:] - mean) / sqrt(variance + eps) * w + b, biased variance. x, y may alias; w, b:
/// [n].
void LayerNorm(MatView<const float> x, std::span<const float> w, std::span<const float> b,
               float eps, MatView<float> y);

/// gate = silu(gate) * up, silu(z) = z * sigmoid(z). Same shape.
void SiluMul(MatView<float> gate, MatView<const float> up);

/// gate = (up' + 1) * gate' * sigmoid(alpha * gate') with gate' = min(gate, limit) and up' clamped
/// to
/// +-limit: the gated unit of gpt-oss. Same shape.
void ClampedSwigluMul(MatView<float> gate, MatView<const float> up, float alpha, float limit);

/// x[t,:] += bias; nothing when `bias` is empty.
void AddBias(MatView<float> x, std::span<const float> bias);

/// x clamped to +-limit.
void Clamp(MatView<float> x, float limit);

/// x += y. Same shape.
void AddTo(MatView<float> x, MatView<const float> y);

/// Rotates `2 * cos.size()` values in place. Interleaved: pairs (2i, 2i+1); otherwise half-split:
/// pairs (i, i + half). cos, sin: [dim / 2] of the token's position.
void ApplyRope(float* x, std::span<const float> cos, std::span<const float> sin, bool interleaved);

}  // namespace carpool
