// deepseek_v32: DeepSeek-V3.2 (Hugging Face DeepseekV32ForCausalLM): V3 with the DSA indexer in
// every layer, whose rope is half-split where the main one is interleaved.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadDeepseekV32(ConfigFields& f, ModelConfig& c) {
  ReadDeepseekV3(f, c);
  f.Require(c.mla.q_lora_rank != 0, "q_lora_rank", "a whole number (the indexer reads its output)",
            "nothing");
  ReadIndexer(f, c, /*rope_interleave=*/false);
}

}  // namespace carpool
