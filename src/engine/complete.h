// Runs prompts to the end as one batch: what the command line needs of the engine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace carpool {

struct Completion {
  std::vector<int32_t> token_ids;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

/// Called with every piece of text as it becomes complete UTF-8: (index of the request, text).
using TextCallback = std::function<void(size_t, std::string_view)>;

/// Submits every request, steps until all are done. Errors name the request whose submission failed
/// (none runs then).
Result<std::vector<Completion>> Complete(Engine& engine, std::vector<Request> requests,
                                         const TextCallback& on_text);

}  // namespace carpool
