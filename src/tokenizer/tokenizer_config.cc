#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "tokenizer/tokenizer_spec.h"

namespace carpool {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxConfigBytes = size_t{64} << 20;

// "eos_token": "</s>" or {"content": "</s>", ...}
const std::string* TokenText(const Json& value) {
  if (value.is_string()) return value.get_ptr<const std::string*>();
  if (!value.is_object()) return nullptr;
  const auto it = value.find("content");
  return it != value.end() && it->is_string() ? it->get_ptr<const std::string*>() : nullptr;
}

}  // namespace

Result<TokenizerConfig> LoadTokenizerConfig(const std::string& dir) {
  const std::string path = dir + "/tokenizer_config.json";
  auto text = ReadTextFile(path, kMaxConfigBytes);
  if (!text) {
    if (text.error().code == ErrorCode::kNotFound) return TokenizerConfig{};
    return text.error();
  }
  const Json root = Json::parse(*text, nullptr, false);
  if (!root.is_object()) return MakeError(ErrorCode::kCorrupt, "{}: wanted a JSON object", path);
  TokenizerConfig config;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto it = root.find(name);
    if (it == root.end() || it->is_null()) continue;
    const std::string* token = TokenText(*it);
    if (token == nullptr) {
      return MakeError(ErrorCode::kCorrupt,
                       "{}: {}: wanted a string, an object with \"content\", or null", path, name);
    }
    config.special_tokens.emplace_back(name, *token);
  }
  const auto templates = root.find("chat_template");
  if (templates == root.end() || templates->is_null()) return config;
  if (templates->is_string()) {
    config.chat_templates.emplace_back("default", templates->get<std::string>());
    return config;
  }
  if (!templates->is_array()) {
    return MakeError(ErrorCode::kCorrupt,
                     "{}: chat_template: wanted a string or a list of {{name, template}}", path);
  }
  for (const Json& entry : *templates) {
    const bool good = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                      entry.contains("template") && entry["template"].is_string();
    if (!good) {
      return MakeError(ErrorCode::kCorrupt,
                       "{}: chat_template: wanted a string or a list of {{name, template}}", path);
    }
    config.chat_templates.emplace_back(entry["name"].get<std::string>(),
                                       entry["template"].get<std::string>());
  }
  return config;
}

}  // namespace carpool
