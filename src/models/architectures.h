// THE LIST of model types: what config.json may say. One line per architecture.
#pragma once

#include <array>
#include <string_view>

namespace carpool {

struct Architecture {
  std::string_view model_type;
  std::string_view class_name;  // in "architectures", for configs without model_type
};

inline constexpr std::array kArchitectures = {
    Architecture{"glm_moe_dsa", "GlmMoeDsaForCausalLM"},
};

}  // namespace carpool
