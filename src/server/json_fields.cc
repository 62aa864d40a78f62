#include "server/json_fields.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/printable.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

size_t Depth(std::string_view text) {
  size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

std::string Shown(const Json& value) {
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

ApiResult<Json> ParseJsonObject(std::string_view text) {
  if (text.empty()) return ApiError{400, "the body is empty; wanted a JSON object", {}, {}};
  if (Depth(text) > kMaxJsonDepth) {
    return ApiError{
        400, fmt::format("the body is nested more than {} levels deep", kMaxJsonDepth), {}, {}};
  }
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second && twice.empty()) {
      twice = parsed.get_ref<const std::string&>();
    }
    return true;
  };
  Json body;
  try {
    body = Json::parse(text, watch);
  } catch (const Json::exception& e) {
    std::string_view what = e.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos)
      what.remove_prefix(end + 2);
    return ApiError{
        400, fmt::format("the body is not valid JSON: {}", Printable(what, 200)), {}, {}};
  }
  if (!twice.empty()) {
    return ApiError{
        400, fmt::format("the body gives the key '{}' twice", Printable(twice)), twice, {}};
  }
  if (!body.is_object())
    return ApiError{
        400, fmt::format("the body: wanted a JSON object, got {}", Shown(body)), {}, {}};
  return body;
}

void JsonFields::Fail(std::string_view field, std::string message) {
  if (error_) return;
  error_ = ApiError{400, fmt::format("{}: {}", Path(field), message), Path(field), {}};
}

const Json* JsonFields::Find(std::string_view field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::Bool(std::string_view field, bool fallback) {
  const Json* v = Find(field);
  if (v == nullptr) return fallback;
  if (!v->is_boolean()) {
    Fail(field, fmt::format("wanted true or false, got {}", Shown(*v)));
    return fallback;
  }
  return v->get<bool>();
}

int64_t JsonFields::Int(std::string_view field, int64_t fallback, int64_t low, int64_t high) {
  const Json* v = Find(field);
  if (v == nullptr) return fallback;
  if (v->is_number()) {
    const double d = v->get<double>();
    const bool whole = std::isfinite(d) && d == std::floor(d);
    // Doubles near 2^63 do not convert; low and high are far from there.
    if (whole && d >= static_cast<double>(low) && d <= static_cast<double>(high)) {
      const int64_t n = v->is_number_float() ? static_cast<int64_t>(d) : v->get<int64_t>();
      if (n >= low && n <= high) return n;
    }
  }
  Fail(field, fmt::format("wanted a whole number from {} to {}, got {}", low, high, Shown(*v)));
  return fallback;
}

double JsonFields::Number(std::string_view field, double fallback, double low, double high,
                          bool open_low) {
  const Json* v = Find(field);
  if (v == nullptr) return fallback;
  if (v->is_number()) {
    const double d = v->get<double>();
    if (std::isfinite(d) && (open_low ? d > low : d >= low) && d <= high) return d;
  }
  Fail(field, fmt::format("wanted a number {} {} and at most {}, got {}",
                          open_low ? "more than" : "at least", low, high, Shown(*v)));
  return fallback;
}

std::string JsonFields::String(std::string_view field, std::string fallback, size_t max_bytes) {
  const Json* v = Find(field);
  if (v == nullptr) return fallback;
  if (!v->is_string()) {
    Fail(field, fmt::format("wanted a string, got {}", Shown(*v)));
    return fallback;
  }
  const auto& s = v->get_ref<const std::string&>();
  if (s.size() > max_bytes) {
    Fail(field, fmt::format("wanted at most {} bytes, got {}", max_bytes, s.size()));
    return fallback;
  }
  return s;
}

std::vector<int32_t> JsonFields::TokenIds(std::string_view field, size_t max_count,
                                          size_t vocab_size) {
  const Json* v = Find(field);
  if (v == nullptr) return {};
  if (!v->is_array() || v->size() > max_count) {
    Fail(field, fmt::format("wanted a list of at most {} token ids, got {}", max_count,
                            v->is_array() ? std::to_string(v->size()) : Shown(*v)));
    return {};
  }
  std::vector<int32_t> ids;
  ids.reserve(v->size());
  for (const Json& id : *v) {
    if (!id.is_number_integer() || id.get<double>() < 0 ||
        id.get<double>() >= static_cast<double>(vocab_size)) {
      Fail(field, fmt::format("wanted token ids from 0 to {}, got {}", vocab_size - 1, Shown(id)));
      return {};
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<std::string> JsonFields::Strings(std::string_view field, size_t max_count,
                                             size_t max_bytes) {
  const Json* v = Find(field);
  if (v == nullptr) return {};
  std::vector<std::string> strings;
  const auto add = [&](const Json& s) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty() ||
        s.get_ref<const std::string&>().size() > max_bytes) {
      Fail(field, fmt::format("wanted strings of 1 to {} bytes, got {}", max_bytes, Shown(s)));
      return;
    }
    strings.push_back(s.get<std::string>());
  };
  if (!v->is_array()) {
    add(*v);
    return strings;
  }
  if (v->size() > max_count) {
    Fail(field, fmt::format("wanted at most {} strings, got {}", max_count, v->size()));
    return {};
  }
  for (const Json& s : *v) add(s);
  return strings;
}

const Json* JsonFields::Object(std::string_view field) {
  const Json* v = Find(field);
  if (v == nullptr || v->is_object()) return v;
  Fail(field, fmt::format("wanted an object, got {}", Shown(*v)));
  return nullptr;
}

void JsonFields::OnlyKnown(std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    Fail(Printable(key), fmt::format("unknown; known: {}", fmt::join(known, ", ")));
  }
}

}  // namespace carpool
