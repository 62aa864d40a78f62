// Aligned tables and short numbers for people. JSON output does not go through here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace carpool {

/// Columns are as wide as their widest cell; the first is left-aligned, the others right-aligned.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> headers) : rows_{std::move(headers)} {}
  /// Missing cells are empty; extra ones are a bug.
  void AddRow(std::vector<std::string> cells);
  /// Lines ending in '\n', a rule under the header.
  std::string Render() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "18.4 MB", "5.44 GB": decimal units, three digits.
std::string HumanBytes(double bytes);
/// "7,796".
std::string HumanCount(uint64_t n);
/// "12.3 us", "4.56 ms", "1.20 s".
std::string HumanSeconds(double seconds);

}  // namespace carpool
