// Y = X W^T for every weight format.
#pragma once

#include <span>

#include "base/views.h"
#include "ops/op_context.h"

namespace carpool {

/// y[t, o] = sum_i x[t, i] w[o, i]. x: [tokens, in], w: [out, in], y: [tokens, out]; must not
/// alias. Row t of an M-row call has the same bits as the one-row call, for every M and thread
/// count. One parallel region. Scratch from context.arena, given back before it returns.
void MatMul(MatView<const float> x, const PackedMatrix& w, MatView<float> y, OpContext& context);

/// One x against several weights with the same `cols` in one parallel region: y[j] = x w[j]^T.
struct MatMulTarget {
  const PackedMatrix* w;
  MatView<float> y;
};
void MatMulMany(MatView<const float> x, std::span<const MatMulTarget> targets, OpContext& context);

/// A block-diagonal product, one weight per head: y[t, h*out + o] = sum_i x[t, h*x_stride + i]
/// w[h][o, i], i < in. x: [tokens, >= heads*x_stride], y: [tokens, heads*out]. Absorbed MLA's W_UK
/// and W_UV. One parallel region.
void MatMulPerHead(MatView<const float> x, size_t x_stride, std::span<const PackedMatrix> w,
                   MatView<float> y, OpContext& context);

}  // namespace carpool
