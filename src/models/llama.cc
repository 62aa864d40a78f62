// llama: Llama 2 and 3, SmolLM2 and their kin (Hugging Face LlamaForCausalLM), and qwen3 (Qwen3
// from 0.6B to 32B, Qwen3ForCausalLM), which adds q/k norms: dense models, one MLP per layer.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {
namespace {

void ReadDense(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  ReadGqa(f, c);
  c.gqa.qkv_bias = c.gqa.o_bias = f.Flag({"attention_bias"}, false);
  c.mlp.assign(c.num_layers, MlpKind::kDense);
}

}  // namespace

void ReadLlama(ConfigFields& f, ModelConfig& c) {
  ReadDense(f, c);
  c.mlp_bias = f.Flag({"mlp_bias"}, false);
}

void ReadQwen3(ConfigFields& f, ModelConfig& c) {
  ReadDense(f, c);
  c.gqa.qk_norm = QkNorm::kHead;
  ReadQwenWindows(f, c);
}

}  // namespace carpool
