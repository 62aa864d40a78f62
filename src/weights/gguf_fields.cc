#include "weights/gguf_fields.h"

#include <algorithm>

namespace carpool {
namespace {

std::optional<uint64_t> AsUint(const GgufValue& value) {
  if (const auto* u = std::get_if<uint64_t>(&value)) return *u;
  if (const auto* i = std::get_if<int64_t>(&value); i != nullptr && *i >= 0)
    return static_cast<uint64_t>(*i);
  return std::nullopt;
}

}  // namespace

void GgufFields::Fail(const GgufEntry& entry, std::string_view wanted) {
  if (!status_) return;
  status_ = MakeError(ErrorCode::kCorrupt, "{}: {}: wanted {}, got {}", model_.path(), entry.key,
                      wanted, GgufTypeName(entry.type));
}

std::optional<uint64_t> GgufFields::Uint(std::string_view key) {
  const GgufEntry* entry = model_.Find(key);
  if (entry == nullptr) return std::nullopt;
  if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value)) {
    std::optional<uint64_t> largest;
    for (size_t i = 0; i < (*array)->count; ++i) {
      const auto one = AsUint((*array)->At(i));
      if (!one) break;
      largest = std::max(largest.value_or(0), *one);
    }
    if (largest) return largest;
  } else if (const auto value = AsUint(entry->value)) {
    return value;
  }
  Fail(*entry, "a whole number that is not negative");
  return std::nullopt;
}

std::optional<double> GgufFields::Number(std::string_view key) {
  const GgufEntry* entry = model_.Find(key);
  if (entry == nullptr) return std::nullopt;
  if (const auto* d = std::get_if<double>(&entry->value)) return *d;
  if (const auto* u = std::get_if<uint64_t>(&entry->value)) return static_cast<double>(*u);
  if (const auto* i = std::get_if<int64_t>(&entry->value)) return static_cast<double>(*i);
  Fail(*entry, "a number");
  return std::nullopt;
}

std::optional<bool> GgufFields::Flag(std::string_view key) {
  const GgufEntry* entry = model_.Find(key);
  if (entry == nullptr) return std::nullopt;
  if (const auto* b = std::get_if<bool>(&entry->value)) return *b;
  if (const auto u = AsUint(entry->value)) return *u != 0;
  Fail(*entry, "true or false");
  return std::nullopt;
}

std::optional<std::string_view> GgufFields::Text(std::string_view key) {
  const GgufEntry* entry = model_.Find(key);
  if (entry == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string_view>(&entry->value)) return *text;
  Fail(*entry, "a string");
  return std::nullopt;
}

const GgufArray* GgufFields::Array(std::string_view key, GgufType element) {
  const GgufEntry* entry = model_.Find(key);
  if (entry == nullptr) return nullptr;
  if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value);
      array != nullptr && (*array)->element == element) {
    return array->get();
  }
  Fail(*entry, fmt::format("an array of {}", GgufTypeName(element)));
  return nullptr;
}

}  // namespace carpool
