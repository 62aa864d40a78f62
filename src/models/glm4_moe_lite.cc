// glm4_moe_lite: GLM-4.7-Flash (Hugging Face Glm4MoeLiteForCausalLM): latent attention over all
// keys, the MoE of GLM-5.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadGlm4MoeLite(ConfigFields& f, ModelConfig& c) {
  ReadLatentSigmoidMoe(f, c, /*needs_q_lora=*/false);
}

}  // namespace carpool
