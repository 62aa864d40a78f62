#include "weights/quant_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "weights/json_text.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPatterns = 100'000;
constexpr size_t kMaxRegexes = 64;
constexpr size_t kMaxRegexBytes = 256;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

/// Length of the "[…]" at the start of `pattern`, or 0 when it is not closed; `hit` tells if it
/// contains `c`.
size_t MatchSet(std::string_view pattern, char c, bool& hit) {
  size_t i = 1;
  const bool negated = i < pattern.size() && pattern[i] == '!';
  if (negated) ++i;
  hit = false;
  for (size_t first = i; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      hit = hit || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      hit = hit || pattern[i] == c;
    }
  }
  if (i >= pattern.size()) return 0;
  hit = hit != negated;
  return i + 1;
}

/// Entries of a list of strings at `key`; absent or null is an empty list.
Result<std::vector<std::string>> Strings(const Json& object, const char* key,
                                         const std::string& where) {
  std::vector<std::string> out;
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return out;
  if (!it->is_array() || it->size() > kMaxPatterns) {
    return MakeError(ErrorCode::kCorrupt, "{}: {}: wanted a list of at most {} strings", where, key,
                     kMaxPatterns);
  }
  for (const auto& entry : *it) {
    if (!entry.is_string())
      return MakeError(ErrorCode::kCorrupt, "{}: {}: wanted a list of strings", where, key);
    out.push_back(entry.get<std::string>());
  }
  return out;
}

std::string StringOr(const Json& object, const char* key, std::string fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : fallback;
}

}  // namespace

bool GlobMatch(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = pattern.npos;  // place after the last *, and the text it had swallowed up to then
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_text = t;
      continue;
    }
    size_t used = 0;
    if (p < pattern.size()) {
      bool hit = pattern[p] == '?' || pattern[p] == text[t];
      used = 1;
      if (pattern[p] == '[') {
        if (const size_t set = MatchSet(pattern.substr(p), text[t], hit); set != 0) {
          used = set;
        } else {
          hit = text[t] == '[';  // not closed: an ordinary character
        }
      }
      if (!hit) used = 0;
    }
    if (used != 0) {
      p += used;
      ++t;
    } else if (star != pattern.npos) {
      p = star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

struct QuantConfig::Regex {
  std::regex regex;
};

Result<QuantConfig::Pattern> QuantConfig::MakePattern(const std::string& text,
                                                      const std::string& where) {
  Pattern pattern;
  pattern.text = text;
  if (!text.starts_with("re:")) return pattern;
  if (text.size() > kMaxRegexBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: regular expression of {} bytes, at most {} are allowed", where,
                     text.size(), kMaxRegexBytes);
  }
  try {
    // __polynomial: libstdc++'s matcher without backtracking, so that no pattern can stall the
    // program.
    const auto flags = std::regex::ECMAScript | std::regex_constants::__polynomial;
    pattern.regex = std::make_shared<const Regex>(Regex{std::regex(text.substr(3), flags)});
  } catch (const std::regex_error&) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: '{}' is not a regular expression Carpool understands", where,
                     Printable(text));
  }
  return pattern;
}

bool QuantConfig::Matches(const Pattern& pattern, std::string_view module) {
  if (pattern.regex != nullptr) {
    // As in Python's re.match: at the start, not necessarily to the end.
    return std::regex_search(module.begin(), module.end(), pattern.regex->regex,
                             std::regex_constants::match_continuous);
  }
  const std::string_view text = pattern.text;
  if (text.find_first_of("*?[") != text.npos) return GlobMatch(text, module);
  if (text.empty()) return false;
  const auto ends_name = [&](size_t at) { return at == module.size() || module[at] == '.'; };
  if (module.starts_with(text) && ends_name(text.size())) return true;
  return module.ends_with(text) && module.size() > text.size() &&
         module[module.size() - text.size() - 1] == '.';
}

bool QuantConfig::SaysQuantized(std::string_view module) const {
  if (!present()) return false;
  const auto matches = [&](const Pattern& p) { return Matches(p, module); };
  if (std::any_of(ignored_.begin(), ignored_.end(), matches)) return false;
  return all_linear_ || std::any_of(targets_.begin(), targets_.end(), matches);
}

/// Fills a QuantConfig from the dialects that are around.
class QuantConfigParser {
 public:
  explicit QuantConfigParser(std::string where) : where_(std::move(where)) {}

  /// "quantization" of hf_quant_config.json, or "quantization_config" of config.json.
  Result<QuantConfig> Parse(const Json& object) {
    if (!object.is_object()) return MakeError(ErrorCode::kCorrupt, "{}: wanted an object", where_);
    config_.method_ = StringOr(object, "quant_algo", StringOr(object, "quant_method", ""));
    for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert"}) {
      RETURN_IF_ERROR(Append(object, key, config_.ignored_));
    }
    if (const auto it = object.find("config_groups"); it != object.end() && it->is_object()) {
      config_.all_linear_ = false;
      for (const auto& group : *it) {
        if (group.is_object()) RETURN_IF_ERROR(AddTargets(group));
      }
    }
    if (const auto it = object.find("quantized_layers"); it != object.end() && it->is_object()) {
      config_.all_linear_ = false;
      for (const auto& layer : it->items()) config_.targets_.push_back({layer.key(), nullptr});
    }
    return std::move(config_);
  }

 private:
  Status Append(const Json& object, const char* key, std::vector<QuantConfig::Pattern>& list) {
    ASSIGN_OR_RETURN(const auto texts, Strings(object, key, where_));
    for (const auto& text : texts) {
      ASSIGN_OR_RETURN(auto pattern, QuantConfig::MakePattern(text, where_));
      if (pattern.regex != nullptr && ++num_regexes_ > kMaxRegexes) {
        return MakeError(ErrorCode::kUnsupported, "{}: more than {} regular expressions", where_,
                         kMaxRegexes);
      }
      list.push_back(std::move(pattern));
    }
    return {};
  }

  /// Targets are layer classes ("Linear") or module names.
  Status AddTargets(const Json& group) {
    std::vector<QuantConfig::Pattern> targets;
    RETURN_IF_ERROR(Append(group, "targets", targets));
    for (auto& target : targets) {
      if (target.text == "Linear") config_.all_linear_ = true;
      config_.targets_.push_back(std::move(target));
    }
    return {};
  }

  std::string where_;
  QuantConfig config_;
  size_t num_regexes_ = 0;
};

Result<QuantConfig> QuantConfig::Load(const std::string& dir) {
  for (const auto& [file, key] : {std::pair("hf_quant_config.json", "quantization"),
                                  std::pair("config.json", "quantization_config")}) {
    const std::string path = dir + "/" + file;
    std::error_code ec;
    if (!std::filesystem::exists(path, ec)) continue;
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
    ASSIGN_OR_RETURN(const Json document, ParseJsonObject(text, path));
    const auto it = document.find(key);
    if (it == document.end() || it->is_null()) continue;
    return QuantConfigParser(path + ": " + key).Parse(*it);
  }
  return QuantConfig();
}

}  // namespace carpool
