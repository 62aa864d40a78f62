// gpt_oss: gpt-oss-20b, gpt-oss-120b (Hugging Face GptOssForCausalLM): every other layer sees a
// sliding window, each head has a sink logit, everything has a bias, the gated unit is clamped.
//
// Experts come fused and with the rows of gate and up in turns: MXFP4 blocks [experts, rows,
// inputs / 32, 16], or floats transposed [experts, inputs, rows]. The gate takes the best k logits
// and a softmax over those, which is a softmax over all, renormalised.
#include "models/all_models.h"
#include "models/bind_parts.h"
#include "models/config_parts.h"

namespace carpool {
namespace {

/// Row `e` of a [experts, width] matrix: every `step`th number from `first` on.
std::vector<float> Part(const std::vector<float>& all, size_t e, size_t width, size_t first,
                        size_t step) {
  std::vector<float> out;
  for (size_t i = e * width + first; i < (e + 1) * width && i < all.size(); i += step)
    out.push_back(all[i]);
  return out;
}

}  // namespace

void ReadGptOss(ConfigFields& f, ModelConfig& c) {
  c.expert_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_bias = c.router_bias = true;
  c.glu.clamped = true;
  c.glu.limit = static_cast<float>(f.Number({"swiglu_limit"}, 1e-3, 1e6, 7.0));
  ReadSoftmaxGate(f, c, /*fallback=*/true);
  c.gate.renormalize = Renormalize::kDivideBySum;
  ReadGqa(f, c);
  c.gqa.qkv_bias = c.gqa.o_bias = f.Flag({"attention_bias"}, true);
  c.gqa.sinks = true;
  ReadWindows(f, c, {.every = 2});
  c.mlp.assign(c.num_layers, MlpKind::kSparse);
}

void BindGptOss(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t,
                LayerWeights& out) {
  out.gqa = BindGqa(c, b, at + ".self_attn");
  const size_t n = c.gate.num_experts, width = c.expert_width, hidden = c.hidden;
  const std::string mlp = at + ".mlp", gate_up = mlp + ".experts.gate_up_proj",
                    down = mlp + ".experts.down_proj";
  MoeWeights w;
  w.router = b.Linear(mlp + ".router", n, hidden);
  w.router_bias = b.Vector(mlp + ".router.bias", n);
  if (b.HasPrefix(mlp + ".experts.0.")) {  // one by one: GGUF
    w.experts = BindExperts(c, b, mlp + ".experts");
    out.moe = std::move(w);
    return;
  }
  const auto gate_up_bias = b.Floats(gate_up + "_bias", {n, 2 * width});
  const auto down_bias = b.Floats(down + "_bias", {n, hidden});
  for (size_t e = 0; e < n; ++e) {
    ExpertSlice part{.expert = e,
                     .num_experts = n,
                     .fused_rows = 2 * width,
                     .row_begin = 0,
                     .rows = width,
                     .cols = hidden,
                     .row_step = 2,
                     .transposed = true};
    GatedMlpWeights x;
    x.gate = b.Slice(gate_up, part);
    part.row_begin = 1;
    x.up = b.Slice(gate_up, part);
    x.down = b.Slice(down, {.expert = e,
                            .num_experts = n,
                            .fused_rows = hidden,
                            .row_begin = 0,
                            .rows = hidden,
                            .cols = width,
                            .transposed = true});
    x.gate_bias = Part(gate_up_bias, e, 2 * width, 0, 2);
    x.up_bias = Part(gate_up_bias, e, 2 * width, 1, 2);
    x.down_bias = Part(down_bias, e, hidden, 0, 1);
    w.experts.push_back(std::move(x));
  }
  out.moe = std::move(w);
}

}  // namespace carpool
