#include "tokenizer/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

namespace carpool {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  size_t bytes = 0;  // 0: cannot start a character
  uint8_t low = 0x80;
  uint8_t high = 0xBF;  // bounds of the second byte
};

Lead ReadLead(uint8_t b) {
  if (b < 0x80) return {1};
  if (b < 0xC2) return {0};
  if (b < 0xE0) return {2};
  if (b < 0xF0)
    return {3, b == 0xE0 ? uint8_t{0xA0} : uint8_t{0x80},
            b == 0xED ? uint8_t{0x9F} : uint8_t{0xBF}};
  if (b < 0xF5)
    return {4, b == 0xF0 ? uint8_t{0x90} : uint8_t{0x80},
            b == 0xF4 ? uint8_t{0x8F} : uint8_t{0xBF}};
  return {0};
}

}  // namespace

std::optional<size_t> InvalidUtf8At(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Lead lead = ReadLead(static_cast<uint8_t>(text[i]));
    if (lead.bytes == 1) {
      ++i;
      continue;
    }
    if (lead.bytes == 0 || i + lead.bytes > text.size()) return i;
    const auto second = static_cast<uint8_t>(text[i + 1]);
    if (second < lead.low || second > lead.high) return i;
    for (size_t j = 2; j < lead.bytes; ++j) {
      if ((static_cast<uint8_t>(text[i + j]) & 0xC0) != 0x80) return i;
    }
    i += lead.bytes;
  }
  return std::nullopt;
}

char32_t CodePointAt(std::string_view text, size_t pos) {
  const size_t n = CharBytes(text, pos);
  const auto first = static_cast<uint8_t>(text[pos]);
  if (n == 1) return first;
  char32_t c = first & (0x7Fu >> n);
  for (size_t j = 1; j < n; ++j) c = (c << 6) | (static_cast<uint8_t>(text[pos + j]) & 0x3Fu);
  return c;
}

char32_t CodePointBefore(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return CodePointAt(text, start);
}

void AppendUtf8(char32_t c, std::string& out) {
  const auto put = [&out](char32_t b) {
    out.push_back(static_cast<char>(static_cast<uint8_t>(b)));
  };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWordCharacter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;
  }
}

std::string QuotedForMessage(std::string_view text) {
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size()) {
    if (i >= 48) return out + "...\"";
    const Lead lead = ReadLead(static_cast<uint8_t>(text[i]));
    const std::string_view one = text.substr(i, lead.bytes == 0 ? 1 : lead.bytes);
    if (lead.bytes == 1 && (text[i] < 0x20 || text[i] == 0x7F)) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[i]));
      ++i;
    } else if (InvalidUtf8At(one)) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[i]));
      ++i;
    } else {
      out += one;
      i += one.size();
    }
  }
  return out + "\"";
}

void Utf8Stream::Feed(std::string_view bytes, std::string& out) {
  for (const char ch : bytes) {
    const auto b = static_cast<uint8_t>(ch);
    if (!pending_.empty()) {
      if (b >= low_ && b <= high_) {
        pending_.push_back(ch);
        low_ = 0x80;
        high_ = 0xBF;
        if (pending_.size() == want_) {
          out += pending_;
          pending_.clear();
        }
        continue;
      }
      out += kReplacement;
      pending_.clear();
    }
    const Lead lead = ReadLead(b);
    if (lead.bytes == 1) {
      out.push_back(ch);
    } else if (lead.bytes == 0) {
      out += kReplacement;
    } else {
      pending_.assign(1, ch);
      want_ = lead.bytes;
      low_ = lead.low;
      high_ = lead.high;
    }
  }
}

void Utf8Stream::Finish(std::string& out) {
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
}

}  // namespace carpool
