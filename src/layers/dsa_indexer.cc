#include "layers/dsa_indexer.h"

#include <algorithm>
#include <cmath>

#include "ops/activation_rows.h"
#include "ops/elementwise.h"

namespace carpool {
namespace {

constexpr float kKeyNormEps = 1e-6f;
// Index groups one task scores: 64 pages = 1024 keys, some 100 us of work at GLM-5's size.
constexpr size_t kGroupsPerTask = 64;

}  // namespace

IndexerInputs DsaIndexer::Allocate(size_t rows, Arena& arena) const {
  return {arena.Matrix<float>(rows, heads_ * dim_), arena.Matrix<float>(rows, dim_),
          arena.Matrix<float>(rows, heads_)};
}

void DsaIndexer::Select(IndexerInputs in, StepContext& step) const {
  const StepBatch& batch = step.batch;
  const size_t rows = in.k.rows;
  LayerNorm(in.k, weights_.k_norm, weights_.k_norm_bias, kKeyNormEps, in.k);
  size_t sparse_rows = 0, max_groups = 0;
  for (size_t t = 0; t < rows; ++t) {
    if (!batch.rows[t].valid) continue;
    ApplyRope(in.k.Row(t), step.rope.cos.RowSpan(t), step.rope.sin.RowSpan(t), rope_interleaved_);
    const size_t position = batch.positions[t];
    float* page = step.kv.IndexPage(layer_, *batch.tables[batch.sequences[t]], position);
    for (size_t i = 0; i < dim_; ++i)
      page[i * kPageTokens + position % kPageTokens] = in.k.Row(t)[i];
    if (position >= top_k_) {
      ++sparse_rows;
      max_groups = std::max(max_groups, DivCeil(position + 1, kPageTokens));
    }
  }
  if (sparse_rows == 0) {
    for (size_t t = 0; t < rows; ++t) step.selected[t] = {};
    return;
  }

  ArenaScope scope(step.ops.arena);
  Arena& arena = step.ops.arena;
  auto row_of = arena.Span<uint32_t>(sparse_rows);
  auto scores = arena.Matrix<float>(sparse_rows, max_groups * kPageTokens);
  auto scratch = arena.Matrix<uint64_t>(step.ops.pool.num_threads(), max_groups * kPageTokens);
  size_t n = 0;
  for (size_t t = 0; t < rows; ++t) {
    if (batch.rows[t].valid && batch.positions[t] >= top_k_) {
      row_of[n++] = static_cast<uint32_t>(t);
      // Same factor as the reference: fp32(weights) * heads^-0.5.
      for (size_t h = 0; h < heads_; ++h) {
        in.head_weights.Row(t)[h] *= 1.0f / std::sqrt(static_cast<float>(heads_));
        ApplyRope(in.q.Row(t) + h * dim_, step.rope.cos.RowSpan(t), step.rope.sin.RowSpan(t),
                  rope_interleaved_);
      }
    } else {
      step.selected[t] = {};
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim_));
  const size_t chunks = DivCeil(max_groups, kGroupsPerTask);
  const size_t key_bytes = sparse_rows * max_groups * kPageTokens * dim_ * sizeof(float);
  const bool fork = WorthForking(key_bytes, DivCeil(heads_, size_t{4}));
  RunTasks(step.ops.pool, sparse_rows * chunks, fork, [&](size_t task, size_t) {
    const size_t r = task / chunks, t = row_of[r];
    const PageTable& table = *batch.tables[batch.sequences[t]];
    const size_t groups = DivCeil(batch.positions[t] + size_t{1}, kPageTokens);
    const size_t first = task % chunks * kGroupsPerTask;
    if (first >= groups) return;
    const float* pages[kGroupsPerTask];
    const size_t count = std::min(kGroupsPerTask, groups - first);
    for (size_t g = 0; g < count; ++g)
      pages[g] = step.kv.IndexPage(layer_, table, (first + g) * kPageTokens);
    IndexScores(in.q.Row(t), in.head_weights.Row(t), heads_, dim_, scale, {pages, count},
                scores.Row(r) + first * kPageTokens);
  });
  RunTasks(step.ops.pool, sparse_rows, fork, [&](size_t r, size_t worker) {
    const size_t t = row_of[r];
    std::span<uint32_t> out = step.selection_storage.RowSpan(t);
    const size_t count = SelectTopPositions({scores.Row(r), batch.positions[t] + size_t{1}}, top_k_,
                                            scratch.RowSpan(worker), out);
    step.selected[t] = out.first(count);
  });
  if (step.observer != nullptr) {
    for (size_t r = 0; r < sparse_rows; ++r) {
      step.observer->OnSelectedKeys(layer_, row_of[r], step.selected[row_of[r]]);
    }
  }
}

}  // namespace carpool
