// Normalizer: what happens to text before it is cut into pieces (NFC for Qwen, "▁" for
// SentencePiece-like files).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer_spec.h"

namespace carpool {

/// Unicode NFC, in time O(n log n) even for long runs of combining marks. Needs valid UTF-8.
std::string Nfc(std::string_view text);

/// Applies the steps in order. Needs valid UTF-8.
std::string Normalize(const std::vector<NormalizerStep>& steps, std::string_view text);

/// Replaces every `from` (not empty), left to right.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

}  // namespace carpool
