#include "ops/activation_rows.h"

#include <algorithm>

#include "base/aligned.h"

namespace carpool {

std::span<const float*> F32Rows(MatView<const float> x, Arena& arena) {
  auto rows = arena.Span<const float*>(x.rows);
  if (x.cols % kBlockInputs == 0) {
    for (size_t r = 0; r < x.rows; ++r) rows[r] = x.Row(r);
    return rows;
  }
  const size_t padded = RoundUp(x.cols, kBlockInputs);
  for (size_t r = 0; r < x.rows; ++r) {
    float* copy = arena.Allocate<float>(padded);
    std::copy(x.Row(r), x.Row(r) + x.cols, copy);
    std::fill(copy + x.cols, copy + padded, 0.0f);
    rows[r] = copy;
  }
  return rows;
}

std::span<const Q8Block*> Q8Rows(MatView<const float> x, OpContext& context) {
  const size_t blocks = DivCeil(x.cols, kBlockInputs);
  auto rows = context.arena.Span<const Q8Block*>(x.rows);
  auto* memory = context.arena.Allocate<Q8Block>(x.rows * blocks);
  for (size_t r = 0; r < x.rows; ++r) {
    context.kernels.quantize(x.Row(r), x.cols, memory + r * blocks);
    rows[r] = memory + r * blocks;
  }
  return rows;
}

bool WorthForking(size_t weight_bytes, size_t rows) {
  constexpr size_t kBytes = size_t{32} << 10;  // about 3 us at one row; a quiet fork-join is 0.5 us
  return weight_bytes * (3 + rows) / 4 >= kBytes;
}

}  // namespace carpool
