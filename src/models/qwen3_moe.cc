// qwen3_moe: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder (Hugging Face Qwen3MoeForCausalLM):
// grouped-query attention with per-head q/k norms, softmax gate, no shared expert.
#include "models/all_models.h"
#include "models/config_parts.h"

namespace carpool {

void ReadQwen3Moe(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  ReadSoftmaxGate(f, c, /*fallback=*/false);
  ReadGqa(f, c);
  c.gqa.qk_norm = QkNorm::kHead;
  c.gqa.qkv_bias = c.gqa.o_bias = f.Flag({"attention_bias"}, false);
  ReadQwenWindows(f, c);
  ReadSparseStep(f, c);
}

}  // namespace carpool
