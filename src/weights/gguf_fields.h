// Typed access to GGUF metadata. The first value of a wrong type sticks as the error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "weights/gguf.h"

namespace carpool {

class GgufFields {
 public:
  explicit GgufFields(const GgufModel& model) : model_(model) {}

  /// A number without sign; of a per-layer array, its largest.
  std::optional<uint64_t> Uint(std::string_view key);
  std::optional<double> Number(std::string_view key);  // integers too
  std::optional<bool> Flag(std::string_view key);      // numbers too: not zero
  std::optional<std::string_view> Text(std::string_view key);
  /// An array of this type; null when absent.
  const GgufArray* Array(std::string_view key, GgufType element);

  const Status& status() const { return status_; }

 private:
  void Fail(const GgufEntry& entry, std::string_view wanted);

  const GgufModel& model_;
  Status status_;
};

}  // namespace carpool
