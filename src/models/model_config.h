// ModelConfig: what config.json says, checked. Plain numbers; no tensor, no file handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "layers/gqa_attention.h"
#include "layers/rope.h"
#include "ops/experts.h"
#include "routing/gate.h"

namespace carpool {

enum class MlpKind : uint8_t { kDense, kSparse };
enum class AttentionKind : uint8_t { kMla, kGqa };
enum class IndexerKind : uint8_t { kNone, kFull, kShared };

/// Grouped-query attention.
struct GqaConfig {
  size_t kv_heads = 0;
  size_t head_dim = 0;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool o_bias = false;
  bool sinks = false;
  float clip = 0.0f;                // of q, k and v; 0: none
  std::vector<size_t> window = {};  // [num_layers] keys a row sees, 0: all; empty: all everywhere
};

/// Multi-head latent attention, with DeepSeek sparse attention where `indexer` says so.
struct MlaConfig {
  size_t q_lora_rank = 0;  // 0: q_proj instead of q_a/q_b
  size_t kv_lora_rank = 0;
  size_t nope_dim = 0;
  size_t rope_dim = 0;
  size_t v_dim = 0;
  bool bias = false;
  float latent_norm_eps = 1e-6f;          // HF parity: class default of the two latent norms
  std::vector<IndexerKind> indexer = {};  // [num_layers]; empty: none
  size_t index_heads = 0;
  size_t index_dim = 0;
  size_t index_topk = 0;
  bool index_rope_interleave = true;

  IndexerKind Indexer(size_t layer) const {
    return indexer.empty() ? IndexerKind::kNone : indexer[layer];
  }
};

struct ModelConfig {
  std::string model_type;
  size_t vocab_size = 0;
  size_t hidden = 0;
  size_t num_layers = 0;
  std::vector<MlpKind> mlp;  // [num_layers]
  size_t dense_width = 0;    // of the dense layers; 0: there are none
  bool mlp_bias = false;
  // Mixture of experts; a dense model has one expert and no sparse layer.
  GateSpec gate;
  bool router_bias = false;  // part of the logits
  size_t expert_width = 0;
  bool expert_bias = false;
  Glu glu;  // of routed experts
  size_t num_shared_experts = 0;
  size_t shared_width = 0;   // of all shared experts together, which are one MLP; 0: none
  bool shared_gate = false;  // it counts sigmoid(h·w) instead of 1
  // Attention.
  AttentionKind attention = AttentionKind::kGqa;
  size_t num_heads = 0;
  float softmax_scale = 0.0f;
  RopeSpec rope;
  bool rope_interleave = false;
  GqaConfig gqa;
  MlaConfig mla;

  float rms_eps = 1e-5f;
  size_t max_position = 0;
  size_t num_mtp_layers = 0;
  bool tie_embeddings = false;
  // generation_config.json (or config.json).
  std::vector<int32_t> eos_ids;
  float default_temperature = 1.0f;
  float default_top_p = 1.0f;

  size_t NumMoeLayers() const;
};

/// Reads and checks DIR/config.json and DIR/generation_config.json, or the metadata of a GGUF file.
/// Unknown keys are ignored; every number is range checked and consistent with the others. Errors
/// name the file, the field, what was wanted and what was got.
Result<ModelConfig> LoadModelConfig(const std::string& dir);
/// The same from text; `where` names it in errors.
Result<ModelConfig> ParseModelConfig(const std::string& json, const std::string& where);

}  // namespace carpool
