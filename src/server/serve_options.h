// ServeOptions: everything `carpool serve` can be told.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http_server.h"

namespace carpool {

struct ServeOptions {
  HttpOptions http;
  EngineOptions engine;
  std::string model_dir;
  std::string model_name;             // in /v1/models; empty: the directory's name
  std::vector<std::string> api_keys;  // empty: no key is asked for
  size_t max_choices = 128;           // choices (prompts x n) of one request
  /// Makes what `auto[:max_kl=X]` stands for; empty: there is no calibration.
  std::function<Result<std::shared_ptr<PolicyChooser>>(const std::string& text)> make_auto;
};

/// `min_rows` of batch-coupled policies whose text does not say it: with few clients they would be
/// plain pruning.
inline constexpr size_t kServeMinRows = 4;
/// Parses a policy as the server takes it.
Result<std::shared_ptr<const PolicySpec>> ParseServePolicy(const std::string& text);

}  // namespace carpool
