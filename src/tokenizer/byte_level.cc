#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace carpool {
namespace {

constexpr bool StandsForItself(uint32_t b) {
  return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, 0x144> byte{};  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet a;
  for (auto& b : a.byte) b = -1;
  uint16_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const uint16_t c = StandsForItself(b) ? static_cast<uint16_t>(b) : next++;
    a.character[b] = c;
    a.byte[c] = static_cast<int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

char32_t ByteToCharacter(uint8_t byte) { return kAlphabet.character[byte]; }

std::optional<std::string> BytesOfVocabString(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size(); i += CharBytes(token, i)) {
    const char32_t c = CodePointAt(token, i);
    if (c >= kAlphabet.byte.size() || kAlphabet.byte[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<uint8_t>(kAlphabet.byte[c])));
  }
  return bytes;
}

std::string VocabStringOfBytes(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) AppendUtf8(ByteToCharacter(static_cast<uint8_t>(b)), out);
  return out;
}

std::optional<char> ByteOfFallbackToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(static_cast<uint8_t>(value));
}

}  // namespace carpool
