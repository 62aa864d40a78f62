// glm4_moe: GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7 (Hugging Face Glm4MoeForCausalLM): grouped-query
// attention with partial rotary embedding, the MoE of GLM-5.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadGlm4Moe(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  ReadSharedExperts(f, c);
  ReadSigmoidGate(f, c);
  ReadGqa(f, c);
  c.gqa.qkv_bias = f.Flag({"attention_bias"}, false);
  c.gqa.qk_norm = f.Flag({"use_qk_norm"}, false) ? QkNorm::kHead : QkNorm::kNone;
  ReadFirstDense(f, c);
}

}  // namespace carpool
