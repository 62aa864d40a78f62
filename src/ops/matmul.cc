#include "ops/matmul.h"

#include <algorithm>

namespace carpool {
namespace {

constexpr size_t kTileRows = 64;

float Dot(const float* a, const float* b, size_t n) {
  float lanes[16] = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (size_t l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

void Tile(MatView<const float> x, const PackedMatrix& w, MatView<float> y, size_t first) {
  const auto* weights = reinterpret_cast<const float*>(w.panels());
  const size_t last = std::min(first + kTileRows, w.rows());
  for (size_t o = first; o < last; ++o) {
    for (size_t t = 0; t < x.rows; ++t) y.Row(t)[o] = Dot(x.Row(t), weights + o * w.cols(), w.cols());
  }
}

}  // namespace

void MatMul(MatView<const float> x, const PackedMatrix& w, MatView<float> y, OpContext& context) {
  const MatMulTarget target{&w, y};
  MatMulMany(x, {&target, 1}, context);
}

void MatMulMany(MatView<const float> x, std::span<const MatMulTarget> targets, OpContext& context) {
  size_t tiles = 0;
  for (const auto& t : targets) tiles += DivCeil(t.w->rows(), kTileRows);
  context.pool.ParallelFor(tiles, [&](size_t task, size_t) {
    for (const auto& t : targets) {
      const size_t n = DivCeil(t.w->rows(), kTileRows);
      if (task < n) return Tile(x, *t.w, t.y, task * kTileRows);
      task -= n;
    }
  });
}

void MatMulPerHead(MatView<const float> x, size_t x_stride, std::span<const PackedMatrix> w, MatView<float> y,
                   OpContext& context) {
  context.pool.ParallelFor(w.size(), [&](size_t h, size_t) {
    const size_t in = w[h].cols(), out = w[h].rows();
    const MatView<const float> xh(x.data + h * x_stride, x.rows, in, x.stride);
    const MatView<float> yh(y.data + h * out, y.rows, out, y.stride);
    for (size_t first = 0; first < out; first += kTileRows) Tile(xh, w[h], yh, first);
  });
}

}  // namespace carpool
