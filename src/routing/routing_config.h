// RoutingConfig: what a model's config says about its routing, whatever the family calls the
// fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "routing/gate_functions.h"

namespace carpool {

struct RoutingConfig {
  std::string model;       // preset name, or the config's model_type
  size_t num_experts = 0;  // N
  size_t top_k = 0;        // k
  size_t num_groups = 0;   // G; 0: the model has no groups
  size_t groups_kept = 0;  // kg
  GateActivation scoring = GateActivation::kSoftmax;
  bool has_bias =
      false;  // correction bias on the choice (or, for some families, a bias on the logits)
  bool renormalize = true;
  float scale = 1.0f;  // routed_scaling_factor
  bool scale_known = true;
  size_t num_shared = 0;
  bool custom_function = false;        // the model brings its own routing function (Llama-4)
  bool softmax_over_selected = false;  // top-k first, then a softmax over the k (gpt-oss, Granite)
  size_t zero_experts = 0;             // experts that pass their input through (LongCat)

  bool grouped() const { return num_groups > 0; }
};

/// One row of the table of known models.
struct ModelPreset {
  std::string_view name;
  std::string_view title;
  uint32_t experts, top_k, groups, groups_kept;
  GateActivation scoring;
  bool bias, renormalize;
  float scale;  // NaN: not published
  uint32_t shared;
  /// V: read in a source; M: from general knowledge; V(part) and the like: only what is named.
  std::string_view evidence;
  bool custom = false;
  bool topk_then_softmax = false;
  uint32_t zero_experts = 0;
};
/// THE LIST of presets.
std::span<const ModelPreset> AllModelPresets();
Result<RoutingConfig> PresetConfig(std::string_view name);
RoutingConfig ToConfig(const ModelPreset& preset);

/// Reads the routing fields of any family's config.json (GLM, DeepSeek, Kimi, Qwen, Mixtral, OLMoE,
/// gpt-oss, MiniMax, Llama-4, Ernie, Hunyuan, Granite, Step, LongCat, Nemotron, dots). `where`
/// names the text in errors; they give the field's path and what was wanted.
Result<RoutingConfig> ParseRoutingConfig(std::string_view json, const std::string& where);

/// The same from a file of at most 16 MB.
Result<RoutingConfig> LoadRoutingConfig(const std::string& path);

/// The model's own arithmetic as Carpool computes it (fp32, total order, 1e-20), and the checks of
/// ValidateGate.
Result<GateSpec> ModelGate(const RoutingConfig& config);

}  // namespace carpool
