// deepseek_v3: DeepSeek-V3, V3.1, R1 and Kimi-K2 (Hugging Face DeepseekV3ForCausalLM): latent
// attention with YaRN, sigmoid gate with correction bias and expert groups. Kimi-K2 is the same
// with one group under the name kimi_k2.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadDeepseekV3(ConfigFields& f, ModelConfig& c) {
  ReadLatentSigmoidMoe(f, c, /*needs_q_lora=*/false);
}

}  // namespace carpool
