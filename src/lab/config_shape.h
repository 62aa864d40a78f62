// The planner's view of any MoE model from its config.json: sizes only, no weights.
#pragma once

#include <string>

#include "lab/moe_shapes.h"
#include "quant/packed_matrix.h"

namespace carpool {

struct ConfigShape {
  MoeShape shape;
  WeightFormat expert_format = WeightFormat::kBF16;  // as quantization_config says
};

/// `path`: a config.json, or a checkpoint's directory. Reads the field names of GLM, DeepSeek,
/// Kimi, Qwen, Mixtral, gpt-oss, OLMoE, MiniMax, Llama 4 and their relatives. Errors name the file
/// and the field, what was wanted and what was got; models whose attention is not counted here
/// (linear attention) are refused.
Result<ConfigShape> ShapeFromConfig(const std::string& path);
/// The same from text; `name` is the shape's name and stands in errors.
Result<ConfigShape> ShapeFromConfigText(const std::string& json, const std::string& name);

}  // namespace carpool
