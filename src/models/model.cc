#include "models/model.h"

#include <algorithm>
#include <cmath>

#include "layers/stopwatch.h"
#include "ops/elementwise.h"
#include "ops/logit_rows.h"

namespace carpool {
namespace {

/// Notes `where` for rows of x that are not finite and were so far.
void NoteBadRows(MatView<const float> x, int32_t where, std::span<int32_t> bad_layers) {
  for (size_t t = 0; t < bad_layers.size(); ++t) {
    if (bad_layers[t] == kFinite && !AllFinite({x.Row(t), x.cols})) bad_layers[t] = where;
  }
}

}  // namespace

Model::Model(Checkpoint checkpoint, ModelParts parts)
    : checkpoint_(std::move(checkpoint)),
      parts_(std::move(parts)),
      inv_freq_(RopeFrequencies(parts_.config.rope)) {}

void Model::Forward(const StepBatch& batch, KvCache& kv, Router& router, OpContext& ops,
                    StepStats& stats, RoutingObserver* observer, MatView<float> logits) const {
  Stopwatch total(stats.total_ns);
  ArenaScope scope(ops.arena);
  const size_t rows = batch.size(), hidden = parts_.config.hidden;
  stats.moe.resize(parts_.config.NumMoeLayers());
  ++stats.steps;
  stats.rows += rows;

  auto x = ops.arena.Matrix<float>(rows, hidden);
  auto h = ops.arena.Matrix<float>(rows, hidden);
  auto out = ops.arena.Matrix<float>(rows, hidden);
  RopeAngles rope{ops.arena.Matrix<float>(rows, inv_freq_.size()),
                  ops.arena.Matrix<float>(rows, inv_freq_.size())};
  const auto rope_factor = static_cast<float>(parts_.config.rope.attention_factor);
  for (size_t t = 0; t < rows; ++t) {
    DequantizeRow(parts_.embedding, static_cast<size_t>(batch.tokens[t]), x.Row(t));
    for (size_t i = 0; i < inv_freq_.size(); ++i) {
      const float angle = static_cast<float>(batch.positions[t]) * inv_freq_[i];
      rope.cos.Row(t)[i] = std::cos(angle) * rope_factor;
      rope.sin.Row(t)[i] = std::sin(angle) * rope_factor;
    }
  }
  auto selected = ops.arena.Span<std::span<const uint32_t>>(rows);
  std::fill(selected.begin(), selected.end(), std::span<const uint32_t>());
  StepContext step{
      ops,     batch,    kv,
      &router, stats,    observer,
      rope,    selected, ops.arena.Matrix<uint32_t>(rows, parts_.config.mla.index_topk)};

  std::fill(batch.bad_layers.begin(), batch.bad_layers.end(), kFinite);
  NoteBadRows(x, kBadEmbedding, batch.bad_layers);
  const float eps = parts_.config.rms_eps;
  int32_t index = 0;
  for (const DecoderLayer& layer : parts_.layers) {
    RmsNorm(x, layer.input_norm, eps, h);
    {
      Stopwatch watch(stats.attention_ns);
      layer.attention->Forward(h, out, step);
    }
    AddTo(x, out);
    RmsNorm(x, layer.post_attention_norm, eps, h);
    layer.mlp->Forward(h, out, step);
    AddTo(x, out);
    NoteBadRows(x, index++, batch.bad_layers);
  }

  Stopwatch watch(stats.head_ns);
  size_t wanted = 0;
  for (size_t t = 0; t < rows; ++t) {
    if (batch.wants_logits[t] == 0) continue;
    std::copy(x.Row(t), x.Row(t) + hidden, h.Row(wanted++));
  }
  CARPOOL_CHECK_EQ(wanted, logits.rows);
  if (wanted == 0) return;
  const auto last = h.Rows(0, wanted);
  RmsNorm(last, parts_.final_norm, eps, last);
  MatMul(last, parts_.head, logits, ops);
  if (batch.bad_layers.empty()) return;
  for (size_t t = 0, row = 0; t < rows; ++t) {
    if (batch.wants_logits[t] == 0) continue;
    if (batch.bad_layers[t] == kFinite && !AllFinite({logits.Row(row), logits.cols})) {
      batch.bad_layers[t] = kBadHead;
    }
    ++row;
  }
}

}  // namespace carpool
