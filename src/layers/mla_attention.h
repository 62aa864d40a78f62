// Multi-head latent attention in absorbed form, with the optional DSA indexer (models.md 1.5, 1.6).
//
//   h ──q_a──norm──q_b──rope──► q ──W_UK──► latent query ─┐
//   h ──kv_a──norm/rope──► cache entry (latent ‖ rope key) ├─ attention over selected keys
//   ──W_UV──o──► out h ──indexer──► which positions a row may see ─────────┘
// One path for prefill and decode, so that chunking and batching cannot change a row's bits.
#pragma once

#include <memory>
#include <vector>

#include "layers/attention.h"
#include "layers/dsa_indexer.h"
#include "layers/step.h"
#include "ops/attention.h"
#include "ops/matmul.h"

namespace carpool {

struct MlaShape {
  size_t hidden = 0;
  size_t heads = 0;
  size_t q_lora_rank = 0;  // 0: one q projection
  size_t kv_lora_rank = 0;
  size_t nope_dim = 0;
  size_t rope_dim = 0;
  size_t v_dim = 0;
  float latent_norm_eps = 1e-6f;
  float softmax_scale = 0.0f;
  bool rope_interleaved = true;

  size_t EntryWidth() const { return RoundUp(kv_lora_rank + rope_dim, kAttentionPad); }
};

struct PackedMlaWeights {
  PackedMatrix q_a;  // [q_lora, hidden]; empty without q_lora
  std::vector<float> q_a_norm;
  PackedMatrix q_b;   // [heads * (nope + rope), q_lora or hidden]
  PackedMatrix kv_a;  // [kv_lora + rope, hidden]
  std::vector<float> kv_a_norm;
  std::vector<PackedMatrix> w_uk;  // per head [kv_lora, nope]: nope query -> latent query
  std::vector<PackedMatrix> w_uv;  // per head [v, kv_lora]: latent output -> value
  PackedMatrix o;                  // [hidden, heads * v]
  std::vector<float> q_a_bias, kv_a_bias, o_bias;  // empty without attention_bias
};

class MlaAttention : public Attention {
 public:
  MlaAttention(size_t layer, MlaShape shape, PackedMlaWeights weights,
               std::unique_ptr<DsaIndexer> indexer, bool uses_selection)
      : layer_(layer),
        shape_(shape),
        weights_(std::move(weights)),
        indexer_(std::move(indexer)),
        uses_selection_(uses_selection) {}

  void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const override;

 private:
  void WriteCache(MatView<float> kv, StepContext& step) const;
  void AttendRows(MatView<const float> q, MatView<const float> q_latent, MatView<float> out_latent,
                  StepContext& step) const;

  size_t layer_;
  MlaShape shape_;
  PackedMlaWeights weights_;
  std::unique_ptr<DsaIndexer> indexer_;  // null on shared and indexer-less layers
  bool uses_selection_;                  // full or shared: the step's selection restricts the keys
};

}  // namespace carpool
