#include "models/config_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"

namespace carpool {

using Json = nlohmann::json;

std::string ShortJson(const Json& value) {
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return "an object";
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 80);
}

ConfigFields::ConfigFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

const Json* ConfigFields::Find(Names names) const {
  for (const char* name : names) {
    const auto it = object_.find(name);
    if (it != object_.end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

void ConfigFields::Fail(std::string_view field, std::string_view wanted, std::string_view got,
                        ErrorCode code) {
  if (ok()) status_ = MakeError(code, "{}: {}: wanted {}, got {}", where_, field, wanted, got);
}

void ConfigFields::Require(bool good, std::string_view field, std::string_view wanted,
                           std::string_view got) {
  if (!good) Fail(field, wanted, got);
}

size_t ConfigFields::Size(Names names, size_t min, size_t max, std::optional<size_t> fallback) {
  const Json* value = Find(names);
  const std::string wanted = fmt::format("a whole number from {} to {}", min, max);
  if (value == nullptr) {
    if (!fallback) Fail(*names.begin(), wanted, "nothing");
    return fallback.value_or(min);
  }
  if (value->is_number_unsigned()) {
    const auto n = value->get<uint64_t>();
    if (n >= min && n <= max) return n;
  } else if (value->is_number_float()) {  // 1e3, 2048.0
    const auto x = value->get<double>();
    if (x == std::floor(x) && x >= static_cast<double>(min) && x <= static_cast<double>(max)) {
      return static_cast<size_t>(x);
    }
  }
  Fail(*names.begin(), wanted, ShortJson(*value));
  return fallback.value_or(min);
}

double ConfigFields::Number(Names names, double min, double max, std::optional<double> fallback) {
  const Json* value = Find(names);
  const std::string wanted = fmt::format("a number from {} to {}", min, max);
  if (value == nullptr) {
    if (!fallback) Fail(*names.begin(), wanted, "nothing");
    return fallback.value_or(min);
  }
  if (value->is_number()) {
    const auto x = value->get<double>();
    if (x >= min && x <= max) return x;
  }
  Fail(*names.begin(), wanted, ShortJson(*value));
  return fallback.value_or(min);
}

bool ConfigFields::Flag(Names names, bool fallback) {
  const Json* value = Find(names);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(*names.begin(), "true or false", ShortJson(*value));
  return fallback;
}

std::string ConfigFields::Text(Names names, std::string fallback) {
  const Json* value = Find(names);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Fail(*names.begin(), "a string", ShortJson(*value));
  return fallback;
}

void ConfigFields::RequireText(Names names, std::string_view wanted) {
  const std::string got = Text(names, std::string(wanted));
  if (got != wanted)
    Fail(*names.begin(), wanted, fmt::format("'{}'", Printable(got)), ErrorCode::kUnsupported);
}

ConfigFields ConfigFields::Inside(const char* field, const Json& object) const {
  return ConfigFields(object, fmt::format("{}: {}", where_, field));
}

}  // namespace carpool
