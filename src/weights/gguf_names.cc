#include "weights/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace carpool {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;  // GGUF, Hugging Face

constexpr Pair kGlobal[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

/// Modules of a layer.
constexpr Pair kLayer[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},  // glm4moe and gpt-oss call it so
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b"},
    {"indexer.attn_k", "self_attn.indexer.wk"},
    {"indexer.k_norm", "self_attn.indexer.k_norm"},
    {"indexer.proj", "self_attn.indexer.weights_proj"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"nextn.eh_proj", "eh_proj"},
    {"nextn.enorm", "enorm"},
    {"nextn.hnorm", "hnorm"},
    {"nextn.shared_head_norm", "shared_head.norm"},
    {"nextn.shared_head_head", "shared_head.head"},
    {"nextn.embed_tokens", "embed_tokens"},
};

/// Endings that say what a module's tensor is.
constexpr Pair kKinds[] = {
    {".weight", ".weight"},
    {".bias", ".bias"},
    {".scale", ".weight_scale_2"},  // NVFP4's factor of the tensor
    {".input_scale", ".input_scale"},
};

constexpr std::string_view kCorrectionBias = "gate.e_score_correction_bias";

struct Split {
  std::string_view module;
  std::string_view kind;  // as Hugging Face writes it
};
/// "attn_q.weight" -> "attn_q" and its kind.
std::optional<Split> SplitKind(std::string_view name) {
  for (const Pair& kind : kKinds) {
    if (name.ends_with(kind.first))
      return Split{name.substr(0, name.size() - kind.first.size()), kind.second};
  }
  return std::nullopt;
}

std::string_view FindSecond(std::span<const Pair> pairs, std::string_view first) {
  const auto it =
      std::find_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return p.first == first; });
  return it == pairs.end() ? std::string_view() : it->second;
}

/// Digits up to the first '.', and what follows it; nothing if there are none.
std::optional<Pair> SplitNumber(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == 0 || dot == text.npos || dot > 6) return std::nullopt;
  if (text.substr(0, dot).find_first_not_of("0123456789") != text.npos) return std::nullopt;
  return Pair{text.substr(0, dot), text.substr(dot + 1)};
}

/// "gate", "up" or "down" as this family says it; empty for others.
std::string_view Projection(std::string_view name, const GgufMoeNames& moe) {
  return name == "gate" ? moe.gate : name == "up" ? moe.up : name == "down" ? moe.down : "";
}

/// A module of the MoE block, below "model.layers.N.".
std::optional<HfName> MoeModule(std::string_view module, std::string_view kind,
                                const GgufMoeNames& moe) {
  if (module == "ffn_gate_inp") return HfName{fmt::format("{}.{}{}", moe.block, moe.router, kind)};
  if (!module.starts_with("ffn_")) return std::nullopt;
  const std::string_view rest = module.substr(4);
  if (rest == "gate_up_exps" && kind == ".weight")
    return HfName{fmt::format("{}.experts.{{}}.{{}}.weight", moe.block), GgufPart::kGateUp};
  for (const auto suffix : {"_exps", "_shexp"}) {
    if (!rest.ends_with(suffix)) continue;
    const auto name =
        Projection(rest.substr(0, rest.size() - std::string_view(suffix).size()), moe);
    if (name.empty()) return std::nullopt;
    if (rest.ends_with("_exps"))
      return HfName{fmt::format("{}.experts.{{}}.{}{}", moe.block, name, kind),
                    GgufPart::kPerExpert};
    return HfName{fmt::format("{}.{}.{}{}", moe.block, moe.shared, name, kind)};
  }
  // Files from before experts were stacked: ffn_gate.7.weight.
  const size_t dot = rest.find('.');
  if (dot == rest.npos) return std::nullopt;
  const auto name = Projection(rest.substr(0, dot), moe);
  const std::string_view expert = rest.substr(dot + 1);
  if (name.empty() || expert.empty() || expert.find_first_not_of("0123456789") != expert.npos)
    return std::nullopt;
  return HfName{fmt::format("{}.experts.{}.{}{}", moe.block, expert, name, kind)};
}

}  // namespace

GgufMoeNames GgufMoeNamesOf(std::string_view model_type) {
  if (model_type == "mixtral") return {"block_sparse_moe", "gate", "", "w1", "w3", "w2"};
  GgufMoeNames names;
  if (model_type == "qwen2_moe") names.shared = "shared_expert";
  if (model_type == "gpt_oss") names.router = "router";
  return names;
}

std::optional<HfName> HfNameOf(std::string_view name, const GgufMoeNames& moe) {
  if (!name.starts_with("blk.")) {
    const auto split = SplitKind(name);
    if (!split) return std::nullopt;
    const auto module = FindSecond(kGlobal, split->module);
    if (module.empty()) return std::nullopt;
    return HfName{fmt::format("{}{}", module, split->kind)};
  }
  const auto number = SplitNumber(name.substr(4));
  if (!number) return std::nullopt;
  const auto [layer, rest] = *number;
  const auto at = [layer = layer](std::string_view below) {
    return fmt::format("model.layers.{}.{}", layer, below);
  };
  if (rest == "exp_probs_b" || rest == "exp_probs_b.bias" || rest == "exp_probs_b.weight")
    return HfName{at(fmt::format("{}.{}", moe.block, kCorrectionBias))};
  if (rest == "attn_sinks.weight") return HfName{at("self_attn.sinks")};
  const auto split = SplitKind(rest);
  if (!split) return std::nullopt;
  if (const auto module = FindSecond(kLayer, split->module); !module.empty())
    return HfName{at(fmt::format("{}{}", module, split->kind))};
  auto found = MoeModule(split->module, split->kind, moe);
  if (found) found->name = at(found->name);
  return found;
}

}  // namespace carpool
