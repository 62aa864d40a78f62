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

std::span<Q8Row> NewQ8Rows(size_t rows, size_t cols, Arena& arena) {
  const size_t blocks = DivCeil(cols, kBlockInputs);
  auto out = arena.Span<Q8Row>(rows);
  auto* q = arena.Allocate<int8_t>(rows * blocks * kBlockInputs);
  auto* scale = arena.Allocate<float>(rows * blocks);
  auto* neg_fp4 = arena.Allocate<int32_t>(rows * blocks * 2);
  auto* neg_q8 = arena.Allocate<int32_t>(rows * blocks);
  for (size_t r = 0; r < rows; ++r) {
    out[r] = {q + r * blocks * kBlockInputs, scale + r * blocks, neg_fp4 + r * blocks * 2,
              neg_q8 + r * blocks};
  }
  return out;
}

std::span<Q8Row> Q8Rows(MatView<const float> x, OpContext& context) {
  auto rows = NewQ8Rows(x.rows, x.cols, context.arena);
  for (size_t r = 0; r < x.rows; ++r) context.kernels.quantize(x.Row(r), x.cols, rows[r]);
  return rows;
}

Q8Row BlocksFrom(const Q8Row& row, size_t block) {
  return {row.q + block * kBlockInputs, row.scale + block, row.neg_fp4 + 2 * block,
          row.neg_q8 + block};
}

bool WorthForking(size_t weight_bytes, size_t rows) {
  constexpr size_t kBytes = size_t{32} << 10;  // about 3 us at one row; a quiet fork-join is 0.5 us
  return weight_bytes * (3 + rows) / 4 >= kBytes;
}

}  // namespace carpool
