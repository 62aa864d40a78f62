// THE LIST of architectures: one file each says how its config.json is read and how its tensors are
// called. All share the decoder loop of models/model.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/config_fields.h"
#include "models/model_config.h"
#include "models/model_weights.h"

namespace carpool {

struct Architecture {
  std::string_view model_type;
  std::string_view class_name;  // in "architectures", for configs without model_type
  std::string_view models;      // what people run, for tables
  /// Reads what is the family's own; the fields every family has are read already. Problems stick
  /// in `fields`.
  void (*read)(ConfigFields& fields, ModelConfig& config);
  /// Binds attention and MLP of one layer; `at` is "model.layers.N". Problems stick in the binder.
  void (*bind)(const ModelConfig& config, TensorBinder& binder, const std::string& at, size_t layer,
               LayerWeights& out);
};

std::span<const Architecture> AllArchitectures();
/// Null when there is no such model type.
const Architecture* FindArchitecture(std::string_view model_type);
/// "glm_moe_dsa, glm4_moe, …" for messages.
std::string SupportedModelTypes();

// Defined in src/models/NAME.cc each.
void ReadGlmMoeDsa(ConfigFields& f, ModelConfig& c);
void ReadGlm4Moe(ConfigFields& f, ModelConfig& c);
void ReadGlm4MoeLite(ConfigFields& f, ModelConfig& c);
void ReadDeepseekV2(ConfigFields& f, ModelConfig& c);
void ReadDeepseekV3(ConfigFields& f, ModelConfig& c);
void ReadDeepseekV32(ConfigFields& f, ModelConfig& c);
void ReadQwen3Moe(ConfigFields& f, ModelConfig& c);
void ReadQwen2Moe(ConfigFields& f, ModelConfig& c);
void ReadOlmoe(ConfigFields& f, ModelConfig& c);
void ReadMixtral(ConfigFields& f, ModelConfig& c);
void ReadGptOss(ConfigFields& f, ModelConfig& c);
void ReadLlama(ConfigFields& f, ModelConfig& c);
void ReadQwen3(ConfigFields& f, ModelConfig& c);
void BindQwen2Moe(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                  LayerWeights& out);
void BindMixtral(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                 LayerWeights& out);
void BindGptOss(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                LayerWeights& out);

}  // namespace carpool
