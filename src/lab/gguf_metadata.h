// What a model and its tokenizer are, as GGUF metadata: the inverse of weights/gguf_config.h and
// tokenizer/gguf_tokenizer.h.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "models/model_config.h"
#include "tokenizer/tokenizer_spec.h"
#include "weights/gguf_writer.h"

namespace carpool {

/// general.architecture for a model type; Unsupported when GGUF has none.
Result<std::string_view> GgufArchitectureOf(std::string_view model_type);

/// Everything below "general." and "{architecture}.". Error: Unsupported (what GGUF cannot say).
Status WriteModelMetadata(const ModelConfig& config, GgufWriter& out);

/// Everything below "tokenizer.". Error: Unsupported (a byte-level pre-tokenizer without a name in
/// GGUF; merges of a SentencePiece-like tokenizer that follow from no scores).
Status WriteTokenizerMetadata(const TokenizerSpec& spec, const TokenizerConfig& config,
                              const ModelConfig& model, GgufWriter& out);

}  // namespace carpool
