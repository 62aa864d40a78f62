// The byte alphabet of GPT-2-style vocabularies: every byte is written as one printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace carpool {

/// Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68 become U+0100, U+0101, ...
/// in byte order.
char32_t ByteToCharacter(uint8_t byte);

/// The bytes that a vocabulary string stands for; none when a character of it is outside the
/// alphabet.
std::optional<std::string> BytesOfVocabString(std::string_view token);

/// The vocabulary string of some bytes (the inverse).
std::string VocabStringOfBytes(std::string_view bytes);

/// The byte of "<0x0A>", as vocabularies with byte fallback name one.
std::optional<char> ByteOfFallbackToken(std::string_view token);

}  // namespace carpool
