// Tokenizer: text <-> token ids, as a Hugging Face tokenizer.json of byte-level or
// SentencePiece-like BPE says.
//
// Steps of Encode: added tokens are cut out of the raw text, the rest is normalised, cut into
// pieces by the pre-tokenizer's regexes, and every piece is encoded by merge ranks. Unknown parts
// of a tokenizer.json are refused at load. All const functions may be called from any number of
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer_spec.h"

namespace carpool {

/// Encode refuses longer texts.
inline constexpr size_t kMaxEncodeBytes = size_t{64} << 20;

class Tokenizer {
 public:
  /// Reads DIR/tokenizer.json and, if there, DIR/tokenizer_config.json, or the metadata of a GGUF
  /// file. Errors: NotFound, Corrupt, Unsupported.
  static Result<Tokenizer> Load(const std::string& dir);
  /// From the text of a tokenizer.json; `where` names it in messages.
  static Result<Tokenizer> LoadFromJson(std::string_view text, const std::string& where,
                                        TokenizerConfig config = {});
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// `added_tokens` false: strings that read like added tokens ("<|user|>") are plain text, so that
  /// a user's text cannot write control tokens. `add_special_tokens`: put the post-processor's
  /// tokens (bos) around the text; chat templates write their own, so rendered chats are encoded
  /// without. Errors, InvalidArgument: invalid UTF-8 (the message has the byte offset), more than
  /// kMaxEncodeBytes, a text that makes the regex run away.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool added_tokens = true,
                                      bool add_special_tokens = true) const;

  /// The pieces of a text without added tokens, after normalising: what Encode looks at one by one.
  Result<std::vector<std::string>> PreTokenize(std::string_view text) const;

  /// The text of a whole sequence; bytes that are no UTF-8 become U+FFFD. `skip_special` leaves
  /// special tokens out. Error: InvalidArgument for an id without a token.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;

  /// Largest id + 1. A model's vocab_size may be larger (padding); ids from here on must not be
  /// sampled.
  size_t vocab_size() const;
  /// False for ids outside [0, vocab_size()) and for holes in the vocabulary.
  bool HasToken(int32_t id) const;
  /// The string in the vocabulary ("Ġthe", "<|user|>"); "" where there is no token.
  std::string_view TokenString(int32_t id) const;
  /// The bytes the token stands for (" the"); possibly not valid UTF-8 on their own; "" where there
  /// is no token.
  std::string_view TokenBytes(int32_t id) const;
  /// The id of a vocabulary string or added token.
  std::optional<int32_t> FindToken(std::string_view token_string) const;
  bool IsSpecial(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const;

  /// Named tokens of tokenizer_config.json: "bos_token", "eos_token", "pad_token", ...; "" when not
  /// given.
  std::string_view SpecialTokenText(std::string_view name) const;
  std::optional<int32_t> SpecialTokenId(std::string_view name) const;

  /// SentencePiece-like: the first space of a decoded text was added by Encode and is taken away.
  bool strips_first_space() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace carpool
