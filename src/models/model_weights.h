// The weights of a model as they lie in a checkpoint, whatever the family calls them.
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

/// Multi-head latent attention. H heads, n = nope_dim, r = rope_dim, v = v_dim.
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

/// Grouped-query attention; d = head_dim.
struct GqaWeights {
  StoredMatrix q, k, v;  // [heads * d, hidden], [kv_heads * d, hidden] twice
  StoredMatrix o;        // [hidden, heads * d]
  std::vector<float> q_bias, k_bias, v_bias, o_bias;  // empty without bias
  std::vector<float> q_norm, k_norm;  // [d], or the whole projection (QkNorm::kFull)
  std::vector<float> sinks;           // [heads] or empty
};

struct MoeWeights {
  StoredMatrix router;                    // [experts, hidden]
  std::vector<float> router_bias;         // [experts] or empty: part of the logits
  std::vector<float> correction_bias;     // [experts] or empty: of the choice only
  std::vector<GatedMlpWeights> experts;   // width expert_width
  std::optional<GatedMlpWeights> shared;  // width shared_width
  StoredMatrix shared_gate;               // [1, hidden]; empty: the shared expert counts fully
};

/// One of mla and gqa, one of dense and moe, as ModelConfig says.
struct LayerWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  std::optional<MlaWeights> mla;
  std::optional<IndexerWeights> indexer;  // full layers
  std::optional<GqaWeights> gqa;
  std::optional<GatedMlpWeights> dense;
  std::optional<MoeWeights> moe;
};

/// A multi-token prediction layer (DeepSeek-V3, arXiv 2412.19437, section 2.2): from the hidden
/// state of one token and the embedding of the next, the hidden state that predicts the one after.
/// Bound and checked; nothing drafts with it yet.
struct MtpWeights {
  std::vector<float> embed_norm;   // [hidden], "enorm"
  std::vector<float> hidden_norm;  // [hidden], "hnorm"
  StoredMatrix eh_proj;       // [hidden, 2 * hidden]: normed embedding, then normed hidden state
  LayerWeights layer;         // always sparse, with an indexer of its own where the model has one
  std::vector<float> norm;    // [hidden], before the head
  StoredMatrix embed_tokens;  // [vocab, hidden]; the model's own where the layer has none
  StoredMatrix lm_head;       // the same
};

/// Views into the checkpoint (matrices) and copies (vectors).
struct ModelWeights {
  StoredMatrix embed_tokens;  // [vocab, hidden]
  StoredMatrix lm_head;       // [vocab, hidden]; the same as embed_tokens when tied
  std::vector<float> norm;    // [hidden]
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;  // those the checkpoint has
  size_t mtp_parameters =
      0;  // of all of them, an embedding or head of the model's not counted again
};

/// Binds every tensor of `config`'s architecture and finishes the binder: its report is complete
/// afterwards. One error for all that is missing, misshaped or unreadable. The checkpoint must
/// outlive the result.
Result<ModelWeights> BindModel(const ModelConfig& config, TensorBinder& binder);

}  // namespace carpool
