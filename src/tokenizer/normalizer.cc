#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace carpool {
namespace {

uint8_t CombiningClass(utf8proc_int32_t c) {
  return static_cast<uint8_t>(utf8proc_get_property(c)->combining_class);
}

// utf8proc's own ordering of combining marks is quadratic in the length of a run, which a hostile
// text can make long.
void OrderCombiningMarks(std::vector<utf8proc_int32_t>& chars) {
  size_t i = 0;
  while (i < chars.size()) {
    if (CombiningClass(chars[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < chars.size() && CombiningClass(chars[end]) != 0) ++end;
    std::stable_sort(chars.begin() + static_cast<ptrdiff_t>(i),
                     chars.begin() + static_cast<ptrdiff_t>(end),
                     [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
    i = end;
  }
}

}  // namespace

std::string Nfc(std::string_view text) {
  // No character below U+0300 combines with anything or decomposes for good.
  bool simple = true;
  for (const char c : text) simple = simple && static_cast<uint8_t>(c) < 0xCC;
  if (simple) return std::string(text);

  constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(CodePointAt(text, i)),
                                           parts, 32, kDecompose, &boundary);
    CARPOOL_CHECK(n > 0 && n <= 32);
    chars.insert(chars.end(), parts, parts + n);
  }
  OrderCombiningMarks(chars);
  constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto n =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), kCompose);
  CARPOOL_CHECK(n >= 0);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < static_cast<size_t>(n); ++i)
    AppendUtf8(static_cast<char32_t>(chars[i]), out);
  return out;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  while (true) {
    const size_t hit = text.find(from, pos);
    if (hit == std::string_view::npos) break;
    out.append(text.substr(pos, hit - pos));
    out.append(to);
    pos = hit + from.size();
  }
  out.append(text.substr(pos));
  return out;
}

std::string Normalize(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        out = Nfc(out);
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.to);
        break;
      case NormalizerStep::Kind::kReplace:
        out = ReplaceAll(out, step.from, step.to);
        break;
    }
  }
  return out;
}

}  // namespace carpool
