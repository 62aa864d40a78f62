// glm4_moe_lite: GLM-4.7-Flash (Hugging Face Glm4MoeLiteForCausalLM): latent attention over all
// keys, the MoE of GLM-5.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadGlm4MoeLite(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  ReadSharedExperts(f, c);
  ReadSigmoidGate(f, c);
  ReadMla(f, c, /*needs_q_lora=*/false);
  ReadFirstDense(f, c);
}

}  // namespace carpool
