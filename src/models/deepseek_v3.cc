// deepseek_v3: DeepSeek-V3, V3.1, R1 and Kimi-K2 (Hugging Face DeepseekV3ForCausalLM): latent
// attention with YaRN, sigmoid gate with correction bias and expert groups. Kimi-K2 is the same
// with one group under the name kimi_k2.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadDeepseekV3(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  ReadSharedExperts(f, c);
  ReadSigmoidGate(f, c);
  ReadMla(f, c, /*needs_q_lora=*/false);
  ReadFirstDense(f, c);
}

}  // namespace carpool
