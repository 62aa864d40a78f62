#include "models/all_models.h"

#include "models/bind_parts.h"

namespace carpool {
namespace {

constexpr Architecture kArchitectures[] = {
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", "GLM-5, 5.1, 5.2", ReadGlmMoeDsa, BindUsualLayer},
    {"glm4_moe", "Glm4MoeForCausalLM", "GLM-4.5, 4.5-Air, 4.6, 4.7", ReadGlm4Moe, BindUsualLayer},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", "GLM-4.7-Flash", ReadGlm4MoeLite, BindUsualLayer},
    {"deepseek_v2", "DeepseekV2ForCausalLM", "DeepSeek-V2, V2-Lite", ReadDeepseekV2,
     BindUsualLayer},
    {"deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek-V3, V3.1, R1", ReadDeepseekV3,
     BindUsualLayer},
    {"kimi_k2", "KimiK2ForCausalLM", "Kimi-K2, K2-Thinking, K2.5", ReadDeepseekV3, BindUsualLayer},
    {"deepseek_v32", "DeepseekV32ForCausalLM", "DeepSeek-V3.2", ReadDeepseekV32, BindUsualLayer},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3-30B-A3B, 235B-A22B", ReadQwen3Moe, BindUsualLayer},
    {"qwen2_moe", "Qwen2MoeForCausalLM", "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B", ReadQwen2Moe,
     BindQwen2Moe},
    {"olmoe", "OlmoeForCausalLM", "OLMoE-1B-7B", ReadOlmoe, BindUsualLayer},
    {"mixtral", "MixtralForCausalLM", "Mixtral-8x7B, 8x22B", ReadMixtral, BindMixtral},
    {"gpt_oss", "GptOssForCausalLM", "gpt-oss-20b, 120b", ReadGptOss, BindGptOss},
    {"llama", "LlamaForCausalLM", "Llama 2 and 3, SmolLM2 (dense)", ReadLlama, BindUsualLayer},
    {"qwen3", "Qwen3ForCausalLM", "Qwen3-0.6B … 32B (dense)", ReadQwen3, BindUsualLayer},
};

}  // namespace

std::span<const Architecture> AllArchitectures() { return kArchitectures; }

const Architecture* FindArchitecture(std::string_view model_type) {
  for (const Architecture& a : kArchitectures) {
    if (a.model_type == model_type) return &a;
  }
  return nullptr;
}

std::string SupportedModelTypes() {
  std::string list;
  for (const Architecture& a : kArchitectures)
    list += fmt::format("{}{}", list.empty() ? "" : ", ", a.model_type);
  return list;
}

}  // namespace carpool
