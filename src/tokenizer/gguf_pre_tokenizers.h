// The pre-tokenizers GGUF files name ("tokenizer.ggml.pre"), as the steps a tokenizer.json has.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace carpool {

struct GgufPreTokenizer {
  std::string_view name;
  /// Regular expressions of "Split" steps, applied one after the other.
  std::span<const std::string_view> splits;
  bool nfc = false;            // text is normalised first
  bool ignore_merges = false;  // a piece that is a token is taken whole
  bool add_bos = false;        // unless tokenizer.ggml.add_bos_token says otherwise
};

/// THE LIST. Null for unknown names.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);
/// The name of the pre-tokenizer with these splits; null when there is none.
const GgufPreTokenizer* FindGgufPreTokenizer(std::span<const std::string> splits,
                                             bool ignore_merges);
/// "default, gpt-2, …" for messages.
std::string GgufPreTokenizerNames();

}  // namespace carpool
