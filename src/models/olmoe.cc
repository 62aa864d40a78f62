// olmoe: OLMoE-1B-7B (Hugging Face OlmoeForCausalLM): q/k norms over the whole projection, optional
// clipping of q, k and v, weights of the softmax gate as they are.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadOlmoe(ConfigFields& f, ModelConfig& c) {
  c.expert_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  ReadSoftmaxGate(f, c, /*fallback=*/false);
  ReadGqa(f, c);
  c.gqa.qk_norm = QkNorm::kFull;
  c.gqa.qkv_bias = c.gqa.o_bias = f.Flag({"attention_bias"}, false);
  c.gqa.clip = static_cast<float>(f.Number({"clip_qkv"}, 0.0, 1e6, 0.0));
  c.mlp.assign(c.num_layers, MlpKind::kSparse);
}

}  // namespace carpool
