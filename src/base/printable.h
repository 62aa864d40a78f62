// Printable: text from a file or a request, made safe for one line of a message.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace carpool {

/// `text` with control characters and DEL as \xNN, cut after `max_bytes` (never inside a UTF-8
/// sequence) with "…".
inline std::string Printable(std::string_view text, size_t max_bytes = 120) {
  std::string out;
  size_t n = text.size();
  if (n > max_bytes) {
    n = max_bytes;
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  }
  for (const char c : text.substr(0, n)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (n < text.size()) out += "…";
  return out;
}

}  // namespace carpool
