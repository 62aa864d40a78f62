// JSON configuration files: parsed without exceptions, bounded in depth, no key twice.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace carpool {

/// An object of at most 64 levels. `where` names the text in errors (Corrupt).
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where);

}  // namespace carpool
