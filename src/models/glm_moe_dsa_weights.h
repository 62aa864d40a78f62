// The weights of a glm_moe_dsa model (GLM-5 family) as they lie in a checkpoint. Names and shapes:
// Hugging Face transformers, class GlmMoeDsaForCausalLM.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "models/model_config.h"
#include "ops/experts.h"
#include "quant/stored_matrix.h"
#include "weights/tensor_binder.h"

namespace carpool {

/// down(silu(gate(x)) * up(x)); gate and up [width, hidden], down [hidden, width].
using GatedMlpWeights = ExpertSource;

/// Multi-head latent attention. H heads, n = qk_nope_dim, r = qk_rope_dim, v = v_dim.
struct MlaWeights {
  StoredMatrix q_a;             // [q_lora, hidden]; empty (rows == 0) when q_lora_rank is 0
  std::vector<float> q_a_norm;  // [q_lora]
  StoredMatrix q_b;   // [H * (n + r), q_lora]: per head nope, then rope; or q_proj [.., hidden]
  StoredMatrix kv_a;  // [kv_lora + r, hidden]: latent, then the rope key
  std::vector<float> kv_a_norm;  // [kv_lora]
  StoredMatrix kv_b;             // [H * (n + v), kv_lora]: per head key part, then value part
  StoredMatrix o;                // [hidden, H * v]
  // With attention_bias only, else empty.
  std::vector<float> q_a_bias;   // [q_lora]
  std::vector<float> kv_a_bias;  // [kv_lora + r]
  std::vector<float> o_bias;     // [hidden]
};

/// The lightning indexer of one "full" layer.
struct IndexerWeights {
  StoredMatrix wq_b;               // [index_heads * index_dim, q_lora]
  StoredMatrix wk;                 // [index_dim, hidden]
  std::vector<float> k_norm;       // [index_dim], a LayerNorm with
  std::vector<float> k_norm_bias;  // [index_dim]
  StoredMatrix weights_proj;       // [index_heads, hidden]
};

struct MoeWeights {
  StoredMatrix router;                    // [experts, hidden]
  std::vector<float> correction_bias;     // [experts]
  std::vector<GatedMlpWeights> experts;   // width expert_width
  std::optional<GatedMlpWeights> shared;  // width expert_width * num_shared_experts
};

struct GlmMoeDsaLayerWeights {
  std::vector<float> input_norm;  // [hidden]
  MlaWeights attention;
  std::optional<IndexerWeights> indexer;   // full layers
  std::vector<float> post_attention_norm;  // [hidden]
  std::optional<GatedMlpWeights> dense;    // one of the two, by ModelConfig::mlp
  std::optional<MoeWeights> moe;
};

/// Views into the checkpoint (matrices) and copies (vectors).
struct GlmMoeDsaWeights {
  StoredMatrix embed_tokens;  // [vocab, hidden]
  StoredMatrix lm_head;       // [vocab, hidden]; the same as embed_tokens when tied
  std::vector<float> norm;    // [hidden]
  std::vector<GlmMoeDsaLayerWeights> layers;
};

/// Binds every tensor and finishes the binder: its report is complete afterwards. One error for all
/// that is missing, misshaped or unreadable. The checkpoint must outlive the result.
Result<GlmMoeDsaWeights> BindGlmMoeDsa(const ModelConfig& config, TensorBinder& binder);

}  // namespace carpool
