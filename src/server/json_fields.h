// Reading request bodies: strict JSON, every field checked, errors that name the field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api_error.h"

namespace carpool {

/// A value, or the error to answer with.
template <typename T>
using ApiResult = std::variant<T, ApiError>;

inline constexpr size_t kMaxJsonDepth = 64;

/// Parses a JSON object. Refused: invalid JSON or UTF-8, numbers outside double, more than
/// kMaxJsonDepth levels, a key given twice in one object.
ApiResult<nlohmann::json> ParseJsonObject(std::string_view text);

/// Reads the fields of one object. The first error is kept; reading goes on with defaults, so that
/// callers check error() once. Fields that are absent or null give the default.
class JsonFields {
 public:
  /// `object` outlives this. `path` is put before field names in errors ("stream_options.").
  explicit JsonFields(const nlohmann::json& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  const std::optional<ApiError>& error() const { return error_; }
  void Fail(std::string_view field, std::string message);

  bool Has(std::string_view field) const { return Find(field) != nullptr; }
  /// Null when absent or null.
  const nlohmann::json* Find(std::string_view field) const;
  bool Bool(std::string_view field, bool fallback);
  /// Whole numbers in [low, high]; 5.0 counts as 5.
  int64_t Int(std::string_view field, int64_t fallback, int64_t low, int64_t high);
  /// Numbers in [low, high], or (low, high] with `open_low`.
  double Number(std::string_view field, double fallback, double low, double high,
                bool open_low = false);
  std::string String(std::string_view field, std::string fallback, size_t max_bytes);
  std::vector<int32_t> TokenIds(std::string_view field, size_t max_count, size_t vocab_size);
  /// A string or a list of strings.
  std::vector<std::string> Strings(std::string_view field, size_t max_count, size_t max_bytes);
  /// The object, or null when absent.
  const nlohmann::json* Object(std::string_view field);
  /// An error for every key not in `known`.
  void OnlyKnown(std::initializer_list<std::string_view> known);

  std::string Path(std::string_view field) const { return path_ + std::string(field); }

 private:
  const nlohmann::json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

/// A value in an error message: its JSON, shortened.
std::string Shown(const nlohmann::json& value);

}  // namespace carpool
