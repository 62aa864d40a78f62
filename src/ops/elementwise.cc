#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/elementwise.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace carpool {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;

/// Sum of (x[i] - mean)^2 (squares when mean is 0): whole vectors, then the tail one element at a
/// time.
float SumSquares(const float* HWY_RESTRICT x, size_t n, float mean) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, mean);
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::Sub(hn::LoadU(d, x + i), m);
    sum = hn::MulAdd(v, v, sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

float Sum(const float* HWY_RESTRICT x, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::Add(hn::LoadU(d, x + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i];
  return total;
}

void RmsNormRow(const float* x, const float* w, size_t n, float eps, float* y) {
  const float scale = 1.0f / std::sqrt(SumSquares(x, n, 0.0f) / static_cast<float>(n) + eps);
  for (size_t i = 0; i < n; ++i) y[i] = w[i] * (x[i] * scale);
}

void LayerNormRow(const float* x, const float* w, const float* b, size_t n, float eps, float* y) {
  const float mean = Sum(x, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(SumSquares(x, n, mean) / static_cast<float>(n) + eps);
  for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale * w[i] + b[i];
}

/// gate[i] = unit(gate[i], up[i]). The tail goes through the same vector code, so that a column's
/// value does not depend on the width.
template <typename Unit>
HWY_INLINE void GluRow(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, size_t n,
                       const Unit& unit) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(unit(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, gate + i);
  if (i == n) return;
  HWY_ALIGN float g_tail[16] = {};
  HWY_ALIGN float u_tail[16] = {};
  std::copy(gate + i, gate + n, g_tail);
  std::copy(up + i, up + n, u_tail);
  hn::Store(unit(hn::Load(d, g_tail), hn::Load(d, u_tail)), d, g_tail);
  std::copy(g_tail, g_tail + (n - i), gate + i);
}

void SiluMulRow(float* gate, const float* up, size_t n) {
  const D d;
  const auto one = hn::Set(d, 1.0f);
  GluRow(gate, up, n, [&](auto g, auto u) HWY_ATTR {
    const auto sigmoid = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(g))));
    return hn::Mul(hn::Mul(g, sigmoid), u);
  });
}

void ClampedSwigluRow(float* gate, const float* up, size_t n, float alpha, float limit) {
  const D d;
  const auto one = hn::Set(d, 1.0f), high = hn::Set(d, limit), low = hn::Set(d, -limit),
             slope = hn::Set(d, -alpha);
  GluRow(gate, up, n, [&](auto g, auto u) HWY_ATTR {
    g = hn::Min(g, high);
    u = hn::Max(hn::Min(u, high), low);
    const auto sigmoid = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Mul(slope, g))));
    return hn::Mul(hn::Mul(hn::Add(u, one), g), sigmoid);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace carpool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace carpool {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(LayerNormRow);
HWY_EXPORT(SiluMulRow);
HWY_EXPORT(ClampedSwigluRow);

void RmsNorm(MatView<const float> x, std::span<const float> w, float eps, MatView<float> y) {
  const auto row = HWY_DYNAMIC_DISPATCH(RmsNormRow);
  for (size_t t = 0; t < x.rows; ++t) row(x.Row(t), w.data(), x.cols, eps, y.Row(t));
}

void LayerNorm(MatView<const float> x, std::span<const float> w, std::span<const float> b,
               float eps, MatView<float> y) {
  const auto row = HWY_DYNAMIC_DISPATCH(LayerNormRow);
  for (size_t t = 0; t < x.rows; ++t) row(x.Row(t), w.data(), b.data(), x.cols, eps, y.Row(t));
}

void SiluMul(MatView<float> gate, MatView<const float> up) {
  const auto row = HWY_DYNAMIC_DISPATCH(SiluMulRow);
  for (size_t t = 0; t < gate.rows; ++t) row(gate.Row(t), up.Row(t), gate.cols);
}

void ClampedSwigluMul(MatView<float> gate, MatView<const float> up, float alpha, float limit) {
  const auto row = HWY_DYNAMIC_DISPATCH(ClampedSwigluRow);
  for (size_t t = 0; t < gate.rows; ++t) row(gate.Row(t), up.Row(t), gate.cols, alpha, limit);
}

void AddBias(MatView<float> x, std::span<const float> bias) {
  if (bias.empty()) return;
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t i = 0; i < x.cols; ++i) x.Row(t)[i] += bias[i];
  }
}

void Clamp(MatView<float> x, float limit) {
  for (size_t t = 0; t < x.rows; ++t) {
    for (size_t i = 0; i < x.cols; ++i) x.Row(t)[i] = std::clamp(x.Row(t)[i], -limit, limit);
  }
}

void AddTo(MatView<float> x, MatView<const float> y) {
  for (size_t t = 0; t < x.rows; ++t) {
    float* a = x.Row(t);
    const float* b = y.Row(t);
    for (size_t i = 0; i < x.cols; ++i) a[i] += b[i];
  }
}

void ApplyRope(float* x, std::span<const float> cos, std::span<const float> sin, bool interleaved) {
  const size_t half = cos.size();
  for (size_t i = 0; i < half; ++i) {
    float& a = interleaved ? x[2 * i] : x[i];
    float& b = interleaved ? x[2 * i + 1] : x[i + half];
    const float rotated = a * cos[i] - b * sin[i];
    b = b * cos[i] + a * sin[i];
    a = rotated;
  }
}

}  // namespace carpool
#endif  // HWY_ONCE
