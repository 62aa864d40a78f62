// mixtral: Mixtral-8x7B, 8x22B (Hugging Face MixtralForCausalLM): few wide experts under names of
// their own, softmax gate that always renormalises.
#include "models/all_models.h"
#include "models/bind_parts.h"
#include "models/config_parts.h"

namespace carpool {

void ReadMixtral(ConfigFields& f, ModelConfig& c) {
  c.expert_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  ReadSoftmaxGate(f, c, /*fallback=*/true);
  c.gate.renormalize = Renormalize::kDivideBySum;
  ReadGqa(f, c);
  ReadWindows(f, c, {.every = 1});
  c.mlp.assign(c.num_layers, MlpKind::kSparse);
}

void BindMixtral(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                 LayerWeights& out) {
  out.gqa = BindGqa(c, b, at + ".self_attn");
  // transformers 5 calls the block mlp in memory, and some files are saved that way.
  const bool original = b.HasPrefix(at + ".block_sparse_moe.");
  MoeNames names;
  if (original) names.mlp = {.gate = "w1", .up = "w3", .down = "w2"};
  BindMlpOrMoe(c, b, at + (original ? ".block_sparse_moe" : ".mlp"), layer, out, names);
}

}  // namespace carpool
