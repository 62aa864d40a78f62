// UTF-8: checking, walking, and turning a stream of bytes into complete characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace carpool {

/// Byte offset of the first byte that is not valid UTF-8 (overlong forms, surrogates, cut
/// sequences); none if all is well.
std::optional<size_t> InvalidUtf8At(std::string_view text);

/// Bytes of the character that starts at text[pos]. Needs valid UTF-8 and pos < size.
inline size_t CharBytes(std::string_view text, size_t pos) {
  const auto b = static_cast<uint8_t>(text[pos]);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

/// The code point that starts at text[pos]. Needs valid UTF-8 and pos < size.
char32_t CodePointAt(std::string_view text, size_t pos);
/// The code point that ends right before text[end], end > 0.
char32_t CodePointBefore(std::string_view text, size_t end);

void AppendUtf8(char32_t code_point, std::string& out);

/// Unicode White_Space.
bool IsWhiteSpace(char32_t c);
/// Letters, marks, digits, letter-like numbers and connecting punctuation: what \w means to
/// single_word tokens.
bool IsWordCharacter(char32_t c);

/// A short, printable, one-line form of any string for messages: quoted, control and invalid bytes
/// escaped, cut at 48.
std::string QuotedForMessage(std::string_view text);

/// Turns bytes that arrive in arbitrary cuts into valid UTF-8. A character is given out when its
/// last byte came; every maximal invalid part becomes one U+FFFD (the practice Unicode recommends,
/// and what Rust's from_utf8_lossy does).
class Utf8Stream {
 public:
  void Feed(std::string_view bytes, std::string& out);
  /// Ends the text: a sequence still open becomes one U+FFFD.
  void Finish(std::string& out);
  bool pending() const { return pending_.size() > 0; }

 private:
  std::string pending_;  // the beginning of one character, at most 3 bytes
  size_t want_ = 0;      // its length
  uint8_t low_ = 0x80;   // bounds of the next byte
  uint8_t high_ = 0xBF;
};

}  // namespace carpool
