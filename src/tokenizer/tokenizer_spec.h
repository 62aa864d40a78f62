// What a tokenizer.json says, as plain data: read and checked by tokenizer_json.cc, put to work by
// tokenizer.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace carpool {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only between non-word neighbours
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // ... after it
  bool normalized = false;   // matched after the normalizer instead of before
  bool special =
      false;  // left out of text when asked; special=false tokens (e.g. <think>) are always text
};

struct NormalizerStep {
  enum class Kind : uint8_t { kNfc, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string from;  // kReplace
  std::string to;    // kReplace: by what; kPrepend: what
};

enum class MetaspacePrepend : uint8_t { kNever, kFirst, kAlways };

struct PreTokenizerStep {
  enum class Kind : uint8_t { kSplit, kByteLevel, kMetaspace };
  Kind kind = Kind::kSplit;
  std::string pattern;            // kSplit, and kByteLevel with its own regex; empty: none
  bool add_prefix_space = false;  // kByteLevel
  std::string replacement;        // kMetaspace
  MetaspacePrepend prepend = MetaspacePrepend::kAlways;
  bool split = true;  // kMetaspace
};

struct BpeSpec {
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t product = 0;
  };
  std::vector<Merge> merges;  // rank = index
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool fuse_unk = false;
  int32_t unk_id = -1;
};

struct TokenizerSpec {
  std::vector<std::string> tokens;  // vocabulary strings by id; "" where there is none
  BpeSpec bpe;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool byte_level = false;  // pieces are bytes in the GPT-2 alphabet
  bool decode_strip_space =
      false;                 // SentencePiece-like: the first space of a text was added by encoding
  std::string decode_space;  // ... and this string stands for a space ("" when byte_level)
  std::vector<int32_t> prefix, suffix;  // what the post-processor puts around a text
};

/// Reads tokenizer.json. `where` names it in messages. Every error is one line.
Result<TokenizerSpec> ParseTokenizerJson(std::string_view text, const std::string& where);

/// tokenizer_config.json: named special tokens ("eos_token" -> "<|endoftext|>") and chat templates
/// (name -> source).
struct TokenizerConfig {
  std::vector<std::pair<std::string, std::string>> special_tokens;
  std::vector<std::pair<std::string, std::string>> chat_templates;
};

/// Absent file: an empty config.
Result<TokenizerConfig> LoadTokenizerConfig(const std::string& dir);

}  // namespace carpool
