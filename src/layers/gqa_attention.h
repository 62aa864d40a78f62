// Grouped-query attention: every family whose cache holds keys and values per key head.
//
//   h ─ q, k, v ─ (bias) ─ (q/k norm) ─ (clip) ─ rope ─► cache; softmax over all keys or a window ─
//   o
//
// One path for prefill and decode, so that chunking and batching cannot change a row's bits.
#pragma once

#include <vector>

#include "layers/attention.h"
#include "ops/attention.h"
#include "ops/matmul.h"

namespace carpool {

/// kHead: over each head's numbers, weights [head_dim]. kFull: over the whole projection (OLMoE),
/// weights [heads * head_dim] and [kv_heads * head_dim].
enum class QkNorm : uint8_t { kNone, kHead, kFull };

struct GqaShape {
  size_t heads = 0;
  size_t kv_heads = 0;  // divides heads
  size_t head_dim = 0;
  size_t rope_dim = 0;  // the first numbers of each head; the rest passes through
  bool rope_interleaved = false;
  QkNorm qk_norm = QkNorm::kNone;
  float norm_eps = 1e-6f;
  float softmax_scale = 0.0f;
  float clip = 0.0f;  // q, k, v are clamped to +-clip; 0: not
  size_t window = 0;  // keys a row sees, itself included; 0: all

  size_t HeadStride() const { return RoundUp(head_dim, kAttentionPad); }
  /// Floats of the cache per token: key and value of every key head.
  size_t EntryWidth() const { return kv_heads * 2 * HeadStride(); }
};

struct PackedGqaWeights {
  PackedMatrix q, k, v;                               // [heads or kv_heads * head_dim, hidden]
  PackedMatrix o;                                     // [hidden, heads * head_dim]
  std::vector<float> q_bias, k_bias, v_bias, o_bias;  // each may be empty
  std::vector<float> q_norm, k_norm;                  // see QkNorm
  std::vector<float> sinks;                           // [heads] or empty: logits without a value
};

class GqaAttention : public Attention {
 public:
  GqaAttention(size_t layer, GqaShape shape, PackedGqaWeights weights)
      : layer_(layer), shape_(shape), weights_(std::move(weights)) {}

  void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const override;

 private:
  void Normalize(MatView<float> x, const std::vector<float>& norm) const;
  void WriteCache(MatView<const float> k, MatView<const float> v, StepContext& step) const;
  /// Where the numbers of the token at `position` begin: the keys of one head of a page lie
  /// together, then its values, then the next head's.
  float* Token(const StepContext& step, const PageTable& table, size_t position) const;

  size_t layer_;
  GqaShape shape_;
  PackedGqaWeights weights_;
};

}  // namespace carpool
