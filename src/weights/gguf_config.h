// The metadata of a GGUF model as the config.json its original had, so that one reader checks both.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "weights/gguf.h"

namespace carpool {

/// What decides how tensors are called.
struct GgufFamily {
  std::string model_type;  // Hugging Face's
  size_t heads = 0;        // attention.head_count
};

/// Errors: Unsupported (general.architecture names the supported ones), Corrupt (absent, wrong
/// type).
Result<GgufFamily> GgufFamilyOf(const GgufModel& model);

/// A config.json. What metadata leaves unsaid comes from the tensors that are there. Errors as
/// above; a key that is missing is left out, so that the config's reader names it.
Result<std::string> GgufConfigJson(const GgufModel& model);

/// "llama, qwen3moe, …": what general.architecture may say.
std::string GgufArchitectures();

}  // namespace carpool
