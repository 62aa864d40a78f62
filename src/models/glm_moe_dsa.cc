// glm_moe_dsa: GLM-5, GLM-5.1, GLM-5.2 (Hugging Face GlmMoeDsaForCausalLM): latent attention over
// the keys the DSA indexer selects, sigmoid gate with correction bias, a shared expert.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadGlmMoeDsa(ConfigFields& f, ModelConfig& c) {
  ReadLatentSigmoidMoe(f, c, /*needs_q_lora=*/true);  // the indexer reads the low-rank query
  ReadIndexer(f, c, /*rope_interleave=*/true);
}

}  // namespace carpool
