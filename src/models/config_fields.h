// ConfigFields: numbers, flags and names of one JSON object, each checked against a range. The
// first problem sticks.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace carpool {

/// Reads fields of a configuration object, which must outlive it. A null field counts as absent.
/// After an error every read returns a harmless value and status() keeps the first error, so that a
/// parser reads top to bottom.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, std::string where);

  /// The first name is used in messages; the others are aliases.
  using Names = std::initializer_list<const char*>;

  /// A whole number from `min` to `max`; `fallback` when absent (none: the field is required).
  size_t Size(Names names, size_t min, size_t max, std::optional<size_t> fallback = std::nullopt);
  /// A finite number from `min` to `max`.
  double Number(Names names, double min, double max, std::optional<double> fallback = std::nullopt);
  bool Flag(Names names, bool fallback);
  std::string Text(Names names, std::string fallback);
  /// Absent or `wanted`; anything else is not supported.
  void RequireText(Names names, std::string_view wanted);
  /// The value itself, or null.
  const nlohmann::json* Find(Names names) const;

  /// Records `where: field: wanted WANTED, got GOT` unless there is an error already.
  void Fail(std::string_view field, std::string_view wanted, std::string_view got,
            ErrorCode code = ErrorCode::kInvalidArgument);
  /// Fail() unless `good`.
  void Require(bool good, std::string_view field, std::string_view wanted, std::string_view got);

  /// The fields of `object`, which is the value of `field`.
  ConfigFields Inside(const char* field, const nlohmann::json& object) const;
  /// Takes over the error of an object inside this one.
  void Adopt(const ConfigFields& inner) {
    if (ok()) status_ = inner.status_;
  }

  const Status& status() const { return status_; }
  bool ok() const { return status_.has_value(); }

 private:
  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

/// JSON as it may stand in a message: one line, cut.
std::string ShortJson(const nlohmann::json& value);

}  // namespace carpool
