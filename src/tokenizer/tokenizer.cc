#include "tokenizer/tokenizer.h"

#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/gguf_tokenizer.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/stream_decoder.h"

namespace carpool {
namespace {

constexpr size_t kMaxTokenizerJsonBytes = size_t{512} << 20;

std::string BytesOf(const TokenizerSpec& spec, const std::string& token) {
  if (spec.byte_level) {
    auto bytes = BytesOfVocabString(token);
    return bytes ? *std::move(bytes) : token;
  }
  if (spec.bpe.byte_fallback) {
    if (const auto byte = ByteOfFallbackToken(token)) return std::string(1, *byte);
  }
  return ReplaceAll(token, spec.decode_space, " ");
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerSpec s, TokenizerConfig c, PreTokenizer p)
      : spec(std::move(s)), config(std::move(c)), pre_tokenizer(std::move(p)), bpe(spec) {}

  TokenizerSpec spec;
  TokenizerConfig config;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokenMatcher before_normalizer;
  AddedTokenMatcher after_normalizer;
  std::vector<std::string> bytes;  // by id
  std::vector<bool> special;       // by id
  std::unordered_map<std::string_view, int32_t> added_ids;

  // What one Encode call carries along.
  struct Call {
    explicit Call(size_t text_bytes, bool added) : scratch(text_bytes), added_tokens(added) {}
    RegexScratch scratch;
    bool added_tokens;
    Bpe::Cache cache;
    std::vector<int32_t> ids;
  };

  Status EncodePlain(std::string_view text, bool at_start, Call& call) const {
    Pieces pieces;
    RETURN_IF_ERROR(pre_tokenizer.Split(text, at_start, call.scratch, pieces));
    for (const std::string_view piece : pieces.views) {
      RETURN_IF_ERROR(bpe.Encode(piece, call.added_tokens, call.cache, call.ids));
    }
    return {};
  }

  Status EncodeNormalized(std::string_view text, bool at_start, Call& call) const {
    if (!call.added_tokens || after_normalizer.empty()) return EncodePlain(text, at_start, call);
    std::vector<AddedTokenMatcher::Part> parts;
    after_normalizer.Split(text, parts);
    for (const auto& part : parts) {
      if (part.id >= 0) {
        call.ids.push_back(part.id);
      } else {
        RETURN_IF_ERROR(EncodePlain(part.text, at_start && part.text.data() == text.data(), call));
      }
    }
    return {};
  }

  Status EncodeRaw(std::string_view text, bool at_start, Call& call) const {
    if (spec.normalizer.empty()) return EncodeNormalized(text, at_start, call);
    return EncodeNormalized(Normalize(spec.normalizer, text), at_start, call);
  }

  Status EncodeText(std::string_view text, Call& call) const {
    if (!call.added_tokens || before_normalizer.empty())
      return text.empty() ? Status() : EncodeRaw(text, true, call);
    std::vector<AddedTokenMatcher::Part> parts;
    before_normalizer.Split(text, parts);
    for (const auto& part : parts) {
      if (part.id >= 0) {
        call.ids.push_back(part.id);
      } else {
        RETURN_IF_ERROR(EncodeRaw(part.text, part.text.data() == text.data(), call));
      }
    }
    return {};
  }
};

namespace {

Status CheckText(std::string_view text) {
  if (text.size() > kMaxEncodeBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the text has {} bytes; at most {} can be tokenized at once", text.size(),
                     kMaxEncodeBytes);
  }
  if (const auto at = InvalidUtf8At(text)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the text is not valid UTF-8: byte 0x{:02x} at offset {}",
                     static_cast<uint8_t>(text[*at]), *at);
  }
  return {};
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::string& dir) {
  if (IsGgufFile(dir)) {
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::Open(dir));
    ASSIGN_OR_RETURN(const std::string json, GgufTokenizerJson(model));
    ASSIGN_OR_RETURN(TokenizerConfig gguf_config, GgufTokenizerConfig(model));
    return LoadFromJson(json, dir + ": tokenizer", std::move(gguf_config));
  }
  const std::string path = dir + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxTokenizerJsonBytes));
  ASSIGN_OR_RETURN(TokenizerConfig config, LoadTokenizerConfig(dir));
  return LoadFromJson(text, path, std::move(config));
}

Result<Tokenizer> Tokenizer::LoadFromJson(std::string_view text, const std::string& where,
                                          TokenizerConfig config) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(text, where));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Make(spec.pre_tokenizer, where));
  auto state =
      std::make_unique<State>(std::move(spec), std::move(config), std::move(pre_tokenizer));
  const TokenizerSpec& s = state->spec;
  state->bytes.reserve(s.tokens.size());
  for (const std::string& token : s.tokens) state->bytes.push_back(BytesOf(s, token));
  state->special.resize(s.tokens.size());
  for (const AddedToken& token : s.added) {
    const auto id = static_cast<size_t>(token.id);
    state->bytes[id] = token.content;
    state->special[id] = token.special;
    state->added_ids.emplace(token.content, token.id);
    if (token.normalized) {
      state->after_normalizer.Add(token, Normalize(s.normalizer, token.content));
    } else {
      state->before_normalizer.Add(token, token.content);
    }
  }
  return Tokenizer(std::move(state));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool added_tokens,
                                               bool add_special_tokens) const {
  RETURN_IF_ERROR(CheckText(text));
  State::Call call(text.size(), added_tokens);
  if (add_special_tokens) call.ids = state_->spec.prefix;
  RETURN_IF_ERROR(state_->EncodeText(text, call));
  if (add_special_tokens)
    call.ids.insert(call.ids.end(), state_->spec.suffix.begin(), state_->spec.suffix.end());
  return std::move(call.ids);
}

Result<std::vector<std::string>> Tokenizer::PreTokenize(std::string_view text) const {
  RETURN_IF_ERROR(CheckText(text));
  RegexScratch scratch(text.size());
  const std::string normalized = Normalize(state_->spec.normalizer, text);
  Pieces pieces;
  RETURN_IF_ERROR(state_->pre_tokenizer.Split(normalized, true, scratch, pieces));
  return std::vector<std::string>(pieces.views.begin(), pieces.views.end());
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    if (!HasToken(id)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "token id {} is not in the tokenizer's vocabulary of {} ids", id,
                       vocab_size());
    }
    text += decoder.Feed(id);
  }
  return text + decoder.Finish();
}

size_t Tokenizer::vocab_size() const { return state_->spec.tokens.size(); }

bool Tokenizer::HasToken(int32_t id) const { return !TokenString(id).empty(); }

std::string_view Tokenizer::TokenString(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= vocab_size()) return {};
  return state_->spec.tokens[static_cast<size_t>(id)];
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= vocab_size()) return {};
  return state_->bytes[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::FindToken(std::string_view token_string) const {
  if (const auto it = state_->added_ids.find(token_string); it != state_->added_ids.end())
    return it->second;
  const int32_t id = state_->bpe.Find(token_string);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < vocab_size() &&
         state_->special[static_cast<size_t>(id)];
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return state_->spec.added; }

std::string_view Tokenizer::SpecialTokenText(std::string_view name) const {
  for (const auto& [key, text] : state_->config.special_tokens) {
    if (key == name) return text;
  }
  return {};
}

std::optional<int32_t> Tokenizer::SpecialTokenId(std::string_view name) const {
  const std::string_view text = SpecialTokenText(name);
  return text.empty() ? std::nullopt : FindToken(text);
}

bool Tokenizer::strips_first_space() const { return state_->spec.decode_strip_space; }

}  // namespace carpool
