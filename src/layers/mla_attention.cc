#include "layers/mla_attention.h"

#include <algorithm>

#include "layers/stopwatch.h"
#include "ops/elementwise.h"

namespace carpool {

void MlaAttention::Forward(MatView<const float> h, MatView<float> out, StepContext& step) const {
  OpContext& ops = step.ops;
  ArenaScope scope(ops.arena);
  const size_t rows = h.rows;
  const size_t head_dim = shape_.nope_dim + shape_.rope_dim;

  // Everything that reads h, in one parallel region.
  auto kv = ops.arena.Matrix<float>(rows, shape_.kv_lora_rank + shape_.rope_dim);
  auto q = ops.arena.Matrix<float>(rows, shape_.heads * head_dim);
  const bool low_rank = shape_.q_lora_rank != 0;
  auto cq = low_rank ? ops.arena.Matrix<float>(rows, shape_.q_lora_rank) : MatView<float>();
  IndexerInputs index;
  MatMulTarget targets[4] = {
      {&weights_.kv_a, kv}, {low_rank ? &weights_.q_a : &weights_.q_b, low_rank ? cq : q}, {}, {}};
  size_t num_targets = 2;
  if (indexer_ != nullptr) {
    index = indexer_->Allocate(rows, ops.arena);
    targets[num_targets++] = {&indexer_->weights().wk, index.k};
    targets[num_targets++] = {&indexer_->weights().weights_proj, index.head_weights};
  }
  MatMulMany(h, {targets, num_targets}, ops);
  AddBias(kv, weights_.kv_a_bias);
  WriteCache(kv, step);

  // Everything that reads the low-rank query.
  if (low_rank) {
    AddBias(cq, weights_.q_a_bias);
    RmsNorm(cq, weights_.q_a_norm, shape_.latent_norm_eps, cq);
    targets[0] = {&weights_.q_b, q};
    num_targets = 1;
    if (indexer_ != nullptr) targets[num_targets++] = {&indexer_->weights().wq_b, index.q};
    MatMulMany(cq, {targets, num_targets}, ops);
  }
  for (size_t t = 0; t < rows; ++t) {
    for (size_t head = 0; head < shape_.heads; ++head) {
      ApplyRope(q.Row(t) + head * head_dim + shape_.nope_dim, step.rope.cos.RowSpan(t),
                step.rope.sin.RowSpan(t), shape_.rope_interleaved);
    }
  }
  if (indexer_ != nullptr) {
    Stopwatch watch(step.stats.indexer_ns);
    indexer_->Select(index, step);
  }

  auto q_latent = ops.arena.Matrix<float>(rows, shape_.heads * shape_.kv_lora_rank);
  MatMulPerHead(q, head_dim, weights_.w_uk, q_latent, ops);
  auto out_latent = ops.arena.Matrix<float>(rows, shape_.heads * shape_.kv_lora_rank);
  AttendRows(q, q_latent, out_latent, step);
  auto values = ops.arena.Matrix<float>(rows, shape_.heads * shape_.v_dim);
  MatMulPerHead(out_latent, shape_.kv_lora_rank, weights_.w_uv, values, ops);
  MatMul(values, weights_.o, out, ops);
  AddBias(out, weights_.o_bias);
}

void MlaAttention::WriteCache(MatView<float> kv, StepContext& step) const {
  const MatView<float> latent(kv.data, kv.rows, shape_.kv_lora_rank, kv.stride);
  RmsNorm(latent, weights_.kv_a_norm, shape_.latent_norm_eps, latent);
  for (size_t t = 0; t < kv.rows; ++t) {
    if (!step.batch.rows[t].valid) continue;
    ApplyRope(kv.Row(t) + shape_.kv_lora_rank, step.rope.cos.RowSpan(t), step.rope.sin.RowSpan(t),
              shape_.rope_interleaved);
    float* entry =
        step.kv.Entry(layer_, *step.batch.tables[step.batch.sequences[t]], step.batch.positions[t]);
    std::copy(kv.Row(t), kv.Row(t) + kv.cols, entry);
  }
}

void MlaAttention::AttendRows(MatView<const float> q, MatView<const float> q_latent,
                              MatView<float> out_latent, StepContext& step) const {
  Arena& arena = step.ops.arena;
  const StepBatch& batch = step.batch;
  const size_t width = shape_.EntryWidth();
  const size_t head_dim = shape_.nope_dim + shape_.rope_dim;
  const size_t latent = shape_.kv_lora_rank;
  auto rows = arena.Span<AttentionRow>(q.rows);
  size_t num_rows = 0;
  // Rows of one sequence that see all their keys share one list of pointers: theirs are prefixes of
  // the longest.
  const float** shared_keys = nullptr;
  size_t shared_count = 0;
  for (size_t t = 0; t < q.rows; ++t) {
    if (!batch.rows[t].valid) {
      std::fill(out_latent.Row(t), out_latent.Row(t) + out_latent.cols, 0.0f);
      continue;
    }
    const PageTable& table = *batch.tables[batch.sequences[t]];
    const size_t visible = batch.positions[t] + size_t{1};
    const auto selected = uses_selection_ ? step.selected[t] : std::span<const uint32_t>();
    const float** keys = nullptr;
    size_t num_keys = 0;
    if (!selected.empty()) {
      num_keys = selected.size();
      keys = arena.Allocate<const float*>(num_keys);
      for (size_t i = 0; i < num_keys; ++i) keys[i] = step.kv.Entry(layer_, table, selected[i]);
      ++step.stats.sparse_attention_rows;
    } else {
      if (t == 0 || batch.sequences[t] != batch.sequences[t - 1] || shared_keys == nullptr) {
        size_t last = t;
        while (last + 1 < q.rows && batch.sequences[last + 1] == batch.sequences[t]) ++last;
        shared_keys = arena.Allocate<const float*>(batch.positions[last] + size_t{1});
        shared_count = 0;
      }
      for (; shared_count < visible; ++shared_count) {
        shared_keys[shared_count] = step.kv.Entry(layer_, table, shared_count);
      }
      keys = shared_keys;
      num_keys = visible;
      ++step.stats.dense_attention_rows;
    }
    float* padded = arena.Allocate<float>(shape_.heads * width);
    for (size_t head = 0; head < shape_.heads; ++head) {
      float* dst = padded + head * width;
      const float* rope = q.Row(t) + head * head_dim + shape_.nope_dim;
      dst = std::copy(q_latent.Row(t) + head * latent, q_latent.Row(t) + (head + 1) * latent, dst);
      dst = std::copy(rope, rope + shape_.rope_dim, dst);
      std::fill(dst, padded + (head + 1) * width, 0.0f);
    }
    rows[num_rows++] = {padded, keys, num_keys, out_latent.Row(t)};
  }
  Stopwatch watch(step.stats.keys_ns);
  Attend(rows.first(num_rows),
         {.heads = shape_.heads,
          .heads_per_kv = shape_.heads,
          .key_width = width,
          .value_width = latent,
          .scale = shape_.softmax_scale},
         step.ops);
}

}  // namespace carpool
