// ModelConfig: what config.json says, checked. Plain numbers; no tensor, no file handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "routing/gate.h"

namespace carpool {

enum class MlpKind : uint8_t { kDense, kSparse };
enum class IndexerKind : uint8_t { kNone, kFull, kShared };

struct ModelConfig {
  std::string model_type;
  size_t vocab_size = 0;
  size_t hidden = 0;
  size_t num_layers = 0;
  size_t dense_width = 0;   // intermediate_size
  size_t expert_width = 0;  // moe_intermediate_size
  size_t num_shared_experts = 0;
  std::vector<MlpKind> mlp;  // [num_layers]
  GateSpec gate;
  size_t num_heads = 0;
  // Multi-head latent attention.
  size_t q_lora_rank = 0;  // 0: q_proj instead of q_a/q_b
  size_t kv_lora_rank = 0;
  size_t qk_nope_dim = 0;
  size_t qk_rope_dim = 0;
  size_t v_dim = 0;
  bool attention_bias = false;
  // DSA indexer.
  std::vector<IndexerKind> indexer;  // [num_layers]
  size_t index_heads = 0;
  size_t index_dim = 0;
  size_t index_topk = 0;
  bool rope_interleave = true;
  bool index_rope_interleave = true;
  double rope_theta = 10000.0;
  float rms_eps = 1e-5f;
  float latent_norm_eps = 1e-6f;  // HF parity: class default of the two latent norms
  size_t max_position = 0;
  size_t num_mtp_layers = 0;
  bool tie_embeddings = false;
  // generation_config.json (or config.json).
  std::vector<int32_t> eos_ids;
  float default_temperature = 1.0f;
  float default_top_p = 1.0f;

  size_t NumMoeLayers() const;
};

/// Reads and checks DIR/config.json and DIR/generation_config.json. Unknown keys are ignored; every
/// number is range checked and consistent with the others. Errors name the file, the field, what
/// was wanted and what was got.
Result<ModelConfig> LoadModelConfig(const std::string& dir);
/// The same from text; `where` names it in errors.
Result<ModelConfig> ParseModelConfig(const std::string& json, const std::string& where);

}  // namespace carpool
