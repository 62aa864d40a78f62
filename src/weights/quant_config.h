// QuantConfig: what a checkpoint says of its own quantisation. Only used to warn: what tensors are
// there decides.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace carpool {

/// True when `pattern` (shell-style: * ? [set] [!set]) matches all of `text`. Time O(pattern *
/// text).
bool GlobMatch(std::string_view pattern, std::string_view text);

/// hf_quant_config.json, or quantization_config in config.json (ModelOpt, compressed-tensors, fp8).
class QuantConfig {
 public:
  /// Nothing said: no quantisation.
  QuantConfig() = default;
  /// Files that are not there say nothing. Errors: Corrupt (not JSON, wrong types), InvalidArgument
  /// (bad "re:").
  static Result<QuantConfig> Load(const std::string& dir);

  bool present() const { return !method_.empty(); }
  /// "NVFP4", "compressed-tensors", "fp8", …: for reports.
  const std::string& method() const { return method_; }
  /// Does it say that the linear layer `module` (no ".weight") is quantised?
  bool SaysQuantized(std::string_view module) const;

 private:
  /// One entry of an ignore, target or exclude list: a glob, a module (and all below it), or a
  /// regular expression.
  struct Regex;
  struct Pattern {
    std::string text;
    std::shared_ptr<const Regex> regex;  // of "re:…", else null
  };
  static Result<Pattern> MakePattern(const std::string& text, const std::string& where);
  static bool Matches(const Pattern& pattern, std::string_view module);

  friend class QuantConfigParser;
  std::string method_;
  bool all_linear_ = true;  // else only what matches `targets_`
  std::vector<Pattern> targets_;
  std::vector<Pattern> ignored_;
};

}  // namespace carpool
