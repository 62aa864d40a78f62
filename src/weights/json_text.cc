#include "weights/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/printable.h"

namespace carpool {
namespace {

constexpr int kMaxDepth = 64;

/// Brackets outside strings, counted before the parser allocates for them.
bool TooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where) {
  using Json = nlohmann::json;
  if (TooDeep(text))
    return MakeError(ErrorCode::kCorrupt, "{}: JSON nested deeper than {} levels", where,
                     kMaxDepth);
  std::vector<std::set<std::string>> open;  // keys of the objects that are being read
  std::string twin;
  bool has_twin = false;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key &&
        !open.back().insert(value.get_ref<const std::string&>()).second) {
      if (!has_twin) twin = value.get_ref<const std::string&>();
      has_twin = true;
    }
    return true;
  };
  Json document = Json::parse(text, watch, false);
  if (document.is_discarded()) return MakeError(ErrorCode::kCorrupt, "{}: not valid JSON", where);
  if (has_twin)
    return MakeError(ErrorCode::kCorrupt, "{}: key '{}' is there twice", where, Printable(twin));
  if (!document.is_object())
    return MakeError(ErrorCode::kCorrupt, "{}: wanted a JSON object", where);
  return document;
}

}  // namespace carpool
