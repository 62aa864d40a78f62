// qwen2_moe: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B (Hugging Face Qwen2MoeForCausalLM): biases on q, k
// and v, weights of the softmax gate as they are, and a shared expert that each row weighs by a
// sigmoid of its own.
#include "models/all_models.h"
#include "models/bind_parts.h"
#include "models/config_parts.h"

namespace carpool {

void ReadQwen2Moe(ConfigFields& f, ModelConfig& c) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  c.num_shared_experts = 1;
  c.shared_width = f.Size({"shared_expert_intermediate_size"}, 1, kMaxWidth);
  c.shared_gate = true;
  ReadSoftmaxGate(f, c, /*fallback=*/false);
  ReadGqa(f, c);
  c.gqa.qkv_bias = f.Flag({"qkv_bias"}, true);
  ReadQwenWindows(f, c);
  ReadSparseStep(f, c);
}

void BindQwen2Moe(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                  LayerWeights& out) {
  out.gqa = BindGqa(c, b, at + ".self_attn");
  BindMlpOrMoe(c, b, at + ".mlp", layer, out, {.shared = "shared_expert"});
  if (out.moe) out.moe->shared_gate = b.Linear(at + ".mlp.shared_expert_gate", 1, c.hidden);
}

}  // namespace carpool
