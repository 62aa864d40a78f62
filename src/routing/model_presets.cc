#include <algorithm>
#include <cmath>

#include "routing/routing_config.h"

namespace carpool {
namespace {

constexpr auto kSig = GateActivation::kSigmoid;
constexpr auto kSoft = GateActivation::kSoftmax;
constexpr auto kSqrt = GateActivation::kSqrtSoftplus;
constexpr float kUnknown = __builtin_nanf("");

// clang-format off
constexpr ModelPreset kPresets[] = {
    // name, title, N, k, G, kg, scoring, bias, renorm, scale, shared, evidence, custom, topk->softmax, zero experts
    {"demo", "the bundled books-20m", 128, 8, 1, 1, kSig, true, true, 2.5f, 1, "V"},
    {"deepseek-v2", "DeepSeek-V2", 160, 6, 8, 3, kSoft, false, false, 16.0f, 2, "M"},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite", 64, 6, 1, 1, kSoft, false, false, 1.0f, 2, "M"},
    {"deepseek-v3", "DeepSeek-V3", 256, 8, 8, 4, kSig, true, true, 2.5f, 1, "V(part)"},
    {"deepseek-r1", "DeepSeek-R1", 256, 8, 8, 4, kSig, true, true, 2.5f, 1, "V(part)"},
    {"deepseek-v3.1", "DeepSeek-V3.1", 256, 8, 8, 4, kSig, true, true, 2.5f, 1, "V(part)"},
    {"deepseek-v3.2", "DeepSeek-V3.2", 256, 8, 8, 4, kSig, true, true, 2.5f, 1, "V(part)"},
    {"kimi-k2", "Kimi K2", 384, 8, 1, 1, kSig, true, true, 2.827f, 1, "V"},
    {"kimi-k2.5", "Kimi K2.5", 384, 8, 1, 1, kSig, true, true, 2.827f, 1, "V"},
    {"kimi-k3", "Kimi K3", 896, 16, 1, 1, kSig, true, true, kUnknown, 0, "V(N,k)"},
    {"glm-4.5", "GLM-4.5", 160, 8, 1, 1, kSig, true, true, 2.5f, 1, "V"},
    {"glm-4.6", "GLM-4.6", 160, 8, 1, 1, kSig, true, true, 2.5f, 1, "M"},
    {"glm-4.7", "GLM-4.7", 160, 8, 1, 1, kSig, true, true, 2.5f, 1, "M"},
    {"glm-4.5-air", "GLM-4.5-Air", 128, 8, 1, 1, kSig, true, true, 1.0f, 1, "V"},
    {"glm-4.7-flash", "GLM-4.7-Flash", 64, 4, 1, 1, kSig, true, true, 1.8f, 1, "M"},
    {"glm-5", "GLM-5", 256, 8, 1, 1, kSig, true, true, 2.5f, 1, "V"},
    {"glm-5.1", "GLM-5.1", 256, 8, 1, 1, kSig, true, true, 2.5f, 1, "M"},
    {"glm-5.2", "GLM-5.2", 256, 8, 1, 1, kSig, true, true, 2.5f, 1, "V(bias range)"},
    {"glm-5.3-flash", "GLM-5.3-Flash", 288, 8, 1, 1, kSig, true, true, kUnknown, 1, "V(N,k)"},
    {"qwen1.5-moe", "Qwen1.5-MoE-A2.7B", 60, 4, 0, 0, kSoft, false, false, 1.0f, 1, "V"},
    {"qwen2-57b", "Qwen2-57B-A14B", 64, 8, 0, 0, kSoft, false, false, 1.0f, 1, "M"},
    {"qwen3-30b", "Qwen3-30B-A3B", 128, 8, 0, 0, kSoft, false, true, 1.0f, 0, "V"},
    {"qwen3-235b", "Qwen3-235B-A22B", 128, 8, 0, 0, kSoft, false, true, 1.0f, 0, "V"},
    {"qwen3-next-80b", "Qwen3-Next-80B", 512, 10, 0, 0, kSoft, false, true, 1.0f, 1, "M"},
    {"qwen3.5-397b", "Qwen3.5-397B-A17B", 512, 10, 0, 0, kSoft, false, true, 1.0f, 1, "V"},
    {"qwen3.5-35b", "Qwen3.5-35B", 256, 8, 0, 0, kSoft, false, true, 1.0f, 1, "M"},
    {"mixtral-8x7b", "Mixtral 8x7B", 8, 2, 0, 0, kSoft, false, true, 1.0f, 0, "M"},
    {"mixtral-8x22b", "Mixtral 8x22B", 8, 2, 0, 0, kSoft, false, true, 1.0f, 0, "M"},
    {"gpt-oss-20b", "gpt-oss-20b", 32, 4, 0, 0, kSoft, false, true, 1.0f, 0, "V", false, true},
    {"gpt-oss-120b", "gpt-oss-120b", 128, 4, 0, 0, kSoft, false, true, 1.0f, 0, "V", false, true},
    {"olmoe-1b-7b", "OLMoE-1B-7B", 64, 8, 0, 0, kSoft, false, false, 1.0f, 0, "V(norm false)"},
    {"minimax-m2", "MiniMax-M2", 256, 8, 0, 0, kSig, true, true, 1.0f, 0, "V"},
    {"llama-4-scout", "Llama-4 Scout", 16, 1, 0, 0, kSig, false, false, 1.0f, 1, "V(code)/M(N)", true},
    {"llama-4-maverick", "Llama-4 Maverick", 128, 1, 0, 0, kSig, false, false, 1.0f, 1, "V(code)/M(N)", true},
    {"ernie-4.5-21b", "Ernie-4.5-21B-A3B", 64, 6, 0, 0, kSoft, true, true, 1.0f, 2, "V"},
    {"ernie-4.5-300b", "Ernie-4.5-300B", 64, 8, 0, 0, kSoft, true, true, 1.0f, 0, "M"},
    {"dots.llm1", "dots.llm1", 128, 6, 1, 1, kSig, true, true, 2.5f, 2, "M"},
    {"granite-3-1b", "Granite 3 1B-A400M", 32, 8, 0, 0, kSoft, false, true, 1.0f, 0, "M", false, true},
    {"granite-3-3b", "Granite 3 3B-A800M", 40, 8, 0, 0, kSoft, false, true, 1.0f, 0, "M", false, true},
    {"granite-4", "Granite 4 MoE", 72, 10, 0, 0, kSoft, false, true, 1.0f, 1, "M", false, true},
    {"hunyuan-a13b", "Hunyuan-A13B", 64, 8, 0, 0, kSoft, false, true, 1.0f, 1, "V(code)/M(N)"},
    {"hunyuan-3", "Hunyuan-3", 192, 8, 1, 1, kSig, true, true, 2.826f, 0, "V(test)"},
    {"step-3.5-flash", "Step-3.5-Flash", 288, 8, 0, 0, kSig, true, true, 3.0f, 1, "V(code), M(N/k)"},
    {"longcat-flash", "LongCat-Flash", 512, 12, 0, 0, kSoft, true, false, 6.0f, 0, "V", true, false, 256},
    {"nemotron-3-nano", "Nemotron-3-Nano", 128, 6, 1, 1, kSig, true, true, kUnknown, 0, "V(N,k)"},
    {"nemotron-3-super", "Nemotron-3-Super", 512, 22, 1, 1, kSig, true, true, kUnknown, 0, "V(N,k)"},
    {"deepseek-v4", "DeepSeek-V4 (256 experts)", 256, 6, 0, 0, kSqrt, true, true, kUnknown, 1, "V(part)"},
    {"deepseek-v4-384", "DeepSeek-V4 (384 experts)", 384, 6, 0, 0, kSqrt, true, true, kUnknown, 1, "V(part)"},
};
// clang-format on

}  // namespace

std::span<const ModelPreset> AllModelPresets() { return kPresets; }

RoutingConfig ToConfig(const ModelPreset& p) {
  RoutingConfig c;
  c.model = p.name;
  c.num_experts = p.experts;
  c.top_k = p.top_k;
  c.num_groups = p.groups;
  c.groups_kept = p.groups_kept;
  c.scoring = p.scoring;
  c.has_bias = p.bias;
  c.renormalize = p.renormalize;
  c.scale_known = !std::isnan(p.scale);
  c.scale = c.scale_known ? p.scale : 1.0f;
  c.num_shared = p.shared;
  c.custom_function = p.custom;
  c.softmax_over_selected = p.topk_then_softmax;
  c.zero_experts = p.zero_experts;
  return c;
}

Result<RoutingConfig> PresetConfig(std::string_view name) {
  std::string known;
  for (const ModelPreset& p : kPresets) {
    if (p.name == name) return ToConfig(p);
    if (!known.empty()) known += ", ";
    known += p.name;
  }
  return MakeError(ErrorCode::kInvalidArgument, "unknown preset '{}'; known: {}", name, known);
}

Result<GateSpec> ModelGate(const RoutingConfig& c) {
  GateSpec g;
  g.num_experts = c.num_experts + c.zero_experts;
  g.top_k = c.top_k;
  g.num_groups = c.grouped() ? c.num_groups : 1;
  g.groups_kept = c.grouped() ? c.groups_kept : 1;
  g.activation = c.scoring;
  g.has_bias = c.has_bias;
  g.group_score = c.has_bias ? GroupScore::kTop2Sum : GroupScore::kMax;
  g.renormalize = c.renormalize ? Renormalize::kDivideBySum : Renormalize::kNone;
  g.scale = c.scale;
  if (c.custom_function && c.zero_experts == 0) {
    g.choice = GateChoice::kLogit;
    g.renormalize = Renormalize::kNone;
  }
  RETURN_IF_ERROR(ValidateGate(g));
  return g;
}

}  // namespace carpool
