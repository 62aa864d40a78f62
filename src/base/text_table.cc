#include "base/text_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace carpool {
namespace {

/// Code points of a UTF-8 string; good enough a width for what we print.
size_t Width(const std::string& s) {
  return static_cast<size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void TextTable::AddRow(std::vector<std::string> cells) {
  CARPOOL_CHECK_LE(cells.size(), rows_[0].size());
  cells.resize(rows_[0].size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::Render() const {
  std::vector<size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Width(row[c]));
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string pad(widths[c] - Width(rows_[r][c]), ' ');
      if (c > 0) out += "  ";
      out += c == 0 ? rows_[r][c] + pad : pad + rows_[r][c];
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
    if (r == 0) {
      for (size_t c = 0; c < widths.size(); ++c) {
        if (c > 0) out += "  ";
        for (size_t i = 0; i < widths[c]; ++i) out += "─";
      }
      out += '\n';
    }
  }
  return out;
}

std::string HumanBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 1000.0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : bytes < 100 ? 1 : 0, kUnits[unit]);
}

std::string HumanCount(uint64_t n) {
  std::string digits = fmt::format("{}", n);
  for (auto i = static_cast<ptrdiff_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), 1, ',');
  return digits;
}

std::string HumanSeconds(double s) {
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1.0) return fmt::format("{:.2f} ms", s * 1e3);
  return fmt::format("{:.2f} s", s);
}

}  // namespace carpool
