// deepseek_v2: DeepSeek-V2, V2-Lite and Coder-V2 (Hugging Face DeepseekV2ForCausalLM): latent
// attention, softmax gate without correction bias, a group's score being its best expert's.
//
// The softmax scale has the square of YaRN's temperature, as the official code has it; some
// releases of transformers leave it out.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadDeepseekV2(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  ReadSharedExperts(f, c);
  ReadSoftmaxGate(f, c, /*fallback=*/false);
  f.RequireText({"scoring_func"}, "softmax");
  if (f.Text({"topk_method"}, "greedy") != "greedy") {
    f.RequireText({"topk_method"}, "group_limited_greedy");
    ReadGroups(f, c, GroupScore::kMax);
  }
  c.gate.scale = static_cast<float>(f.Number({"routed_scaling_factor"}, 1e-6, 1e6, 1.0));
  ReadMla(f, c, /*needs_q_lora=*/false);
  ReadFirstDense(f, c);
}

}  // namespace carpool
