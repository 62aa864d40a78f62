// The tokenizer in a GGUF file's metadata, as the tokenizer.json and tokenizer_config.json its
// original had, so that one reader checks both.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "tokenizer/tokenizer_spec.h"
#include "weights/gguf.h"

namespace carpool {

/// What an entry of tokenizer.ggml.token_type says.
enum GgufTokenType : int32_t {
  kGgufNormal = 1,
  kGgufUnknown,
  kGgufControl,
  kGgufUserDefined,
  kGgufUnused,
  kGgufByte,
};

/// A tokenizer.json: byte-level BPE ("gpt2") with the named pre-tokenizer, or SentencePiece-like
/// BPE
/// ("llama") whose merges follow from the scores. Errors: NotFound (no tokenizer), Unsupported (a
/// model or pre-tokenizer by name), Corrupt.
Result<std::string> GgufTokenizerJson(const GgufModel& model);

/// Special tokens by name and the chat templates.
Result<TokenizerConfig> GgufTokenizerConfig(const GgufModel& model);

}  // namespace carpool
