#include "layers/gqa_attention.h"

#include <algorithm>

#include "ops/elementwise.h"

namespace carpool {

void GqaAttention::Forward(MatView<const float> h, MatView<float> out, StepContext& step) const {
  OpContext& ops = step.ops;
  ArenaScope scope(ops.arena);
  const StepBatch& batch = step.batch;
  const size_t rows = h.rows, dim = shape_.head_dim, stride = shape_.HeadStride();
  auto q = ops.arena.Matrix<float>(rows, shape_.heads * dim);
  auto k = ops.arena.Matrix<float>(rows, shape_.kv_heads * dim);
  auto v = ops.arena.Matrix<float>(rows, shape_.kv_heads * dim);
  const MatMulTarget targets[] = {{&weights_.q, q}, {&weights_.k, k}, {&weights_.v, v}};
  MatMulMany(h, targets, ops);
  AddBias(q, weights_.q_bias);
  AddBias(k, weights_.k_bias);
  AddBias(v, weights_.v_bias);
  Normalize(q, weights_.q_norm);
  Normalize(k, weights_.k_norm);
  if (shape_.clip > 0.0f) {
    for (const MatView<float>& x : {q, k, v}) Clamp(x, shape_.clip);
  }
  WriteCache(k, v, step);

  auto padded = ops.arena.Matrix<float>(rows, shape_.heads * stride);
  auto values = ops.arena.Matrix<float>(rows, shape_.heads * dim);
  auto attention_rows = ops.arena.Span<AttentionRow>(rows);
  size_t num_rows = 0, listed = 0;
  // Rows of one sequence share one list of pointers: theirs are parts of the longest.
  const float** keys = nullptr;
  for (size_t t = 0; t < rows; ++t) {
    if (!batch.rows[t].valid) {
      std::fill(values.Row(t), values.Row(t) + values.cols, 0.0f);
      continue;
    }
    const PageTable& table = *batch.tables[batch.sequences[t]];
    const size_t visible = batch.positions[t] + size_t{1};
    if (t == 0 || batch.sequences[t] != batch.sequences[t - 1] || keys == nullptr) {
      size_t last = t;
      while (last + 1 < rows && batch.sequences[last + 1] == batch.sequences[t]) ++last;
      keys = ops.arena.Allocate<const float*>(batch.positions[last] + size_t{1});
      listed = 0;
    }
    for (; listed < visible; ++listed) keys[listed] = Token(step, table, listed);
    for (size_t head = 0; head < shape_.heads; ++head) {
      float* dst = padded.Row(t) + head * stride;
      std::copy_n(q.Row(t) + head * dim, dim, dst);
      std::fill(dst + dim, dst + stride, 0.0f);
      ApplyRope(dst, step.rope.cos.RowSpan(t), step.rope.sin.RowSpan(t), shape_.rope_interleaved);
    }
    const size_t first =
        shape_.window == 0 || visible <= shape_.window ? 0 : visible - shape_.window;
    attention_rows[num_rows++] = {padded.Row(t), keys + first, visible - first, values.Row(t)};
    ++step.stats.dense_attention_rows;
  }
  Attend(attention_rows.first(num_rows),
         {.heads = shape_.heads,
          .heads_per_kv = shape_.heads / shape_.kv_heads,
          .key_width = stride,
          .value_width = dim,
          .kv_stride = 2 * kPageTokens * stride,
          .value_offset = kPageTokens * stride,
          .scale = shape_.softmax_scale,
          .sinks = weights_.sinks.empty() ? nullptr : weights_.sinks.data()},
         ops);
  MatMul(values, weights_.o, out, ops);
  AddBias(out, weights_.o_bias);
}

void GqaAttention::Normalize(MatView<float> x, const std::vector<float>& norm) const {
  if (shape_.qk_norm == QkNorm::kFull) return RmsNorm(x, norm, shape_.norm_eps, x);
  if (shape_.qk_norm == QkNorm::kNone) return;
  for (size_t t = 0; t < x.rows; ++t) {
    const MatView<float> heads(x.Row(t), x.cols / shape_.head_dim, shape_.head_dim);
    RmsNorm(heads, norm, shape_.norm_eps, heads);
  }
}

float* GqaAttention::Token(const StepContext& step, const PageTable& table, size_t position) const {
  const size_t within = position % kPageTokens;
  return step.kv.Entry(layer_, table, position - within) + within * shape_.HeadStride();
}

void GqaAttention::WriteCache(MatView<const float> k, MatView<const float> v,
                              StepContext& step) const {
  const size_t dim = shape_.head_dim, stride = shape_.HeadStride();
  for (size_t t = 0; t < k.rows; ++t) {
    if (!step.batch.rows[t].valid) continue;
    float* key = Token(step, *step.batch.tables[step.batch.sequences[t]], step.batch.positions[t]);
    for (size_t head = 0; head < shape_.kv_heads; ++head, key += 2 * kPageTokens * stride) {
      std::copy_n(k.Row(t) + head * dim, dim, key);
      ApplyRope(key, step.rope.cos.RowSpan(t), step.rope.sin.RowSpan(t), shape_.rope_interleaved);
      std::fill(key + dim, key + stride, 0.0f);
      float* value = key + kPageTokens * stride;
      std::copy_n(v.Row(t) + head * dim, dim, value);
      std::fill(value + dim, value + stride, 0.0f);
    }
  }
}

}  // namespace carpool
