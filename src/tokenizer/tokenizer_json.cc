#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/tokenizer_steps.h"
#include "tokenizer/utf8.h"

namespace carpool {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr int64_t kMaxTokenId = (1 << 21) - 1;  // the largest vocabularies have about a million ids
constexpr size_t kMaxTokenBytes = 64 * 1024;
constexpr size_t kMaxAddedTokenBytes = 512;

class Reader {
 public:
  Reader(std::string where, TokenizerSpec& spec) : where_(std::move(where)), spec_(spec) {}

  Status Read(element root) {
    object top;
    if (root.get(top)) return Corrupt("wanted a JSON object");
    element model_element;
    object model;
    if (top["model"].get(model_element) || model_element.get(model)) {
      return Corrupt("wanted an object \"model\", got none; is this a tokenizer.json?");
    }
    ASSIGN_OR_RETURN(StepList steps, ReadSteps(top, where_));
    spec_.normalizer = std::move(steps.normalizer);
    spec_.pre_tokenizer = std::move(steps.pre_tokenizer);
    spec_.byte_level = steps.byte_level;
    spec_.decode_strip_space = steps.decode_strip_space;
    spec_.decode_space = std::move(steps.decode_space);
    spec_.prefix = std::move(steps.prefix);
    spec_.suffix = std::move(steps.suffix);
    RETURN_IF_ERROR(ReadModel(model));
    RETURN_IF_ERROR(ReadAddedTokens(top));
    if (spec_.byte_level) RETURN_IF_ERROR(CheckBytesHaveTokens());
    return CheckTemplateIds();
  }

 private:
  template <typename... Args>
  Error Corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return {ErrorCode::kCorrupt, where_ + ": " + fmt::format(format, std::forward<Args>(args)...)};
  }
  template <typename... Args>
  Error Unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return {ErrorCode::kUnsupported,
            where_ + ": " + fmt::format(format, std::forward<Args>(args)...)};
  }

  Status ReadModel(object model) {
    std::string_view type = "BPE";  // older files leave it out
    if (auto e = model["type"]; !e.error() && e.get(type))
      return Corrupt("model.type: wanted a string");
    if (type != "BPE") {
      return Unsupported("model type {}; Carpool reads \"BPE\"", QuotedForMessage(type));
    }
    if (auto e = model["dropout"]; !e.error() && !e.is_null()) {
      double dropout = 0;
      if (e.get(dropout)) return Corrupt("model.dropout: wanted a number or null");
      if (dropout != 0)
        return Unsupported("model.dropout {}: encoding would be random; set it to null", dropout);
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      auto e = model[key];
      if (e.error() || e.is_null()) continue;
      std::string_view value;
      if (e.get(value)) return Corrupt("model.{}: wanted a string or null", key);
      if (!value.empty()) return Unsupported("model.{} {}", key, QuotedForMessage(value));
    }
    BpeSpec& bpe = spec_.bpe;
    const std::pair<const char*, bool*> flags[] = {{"byte_fallback", &bpe.byte_fallback},
                                                   {"ignore_merges", &bpe.ignore_merges},
                                                   {"fuse_unk", &bpe.fuse_unk}};
    for (const auto& [key, value] : flags) {
      auto e = model[key];
      if (!e.error() && !e.is_null() && e.get(*value))
        return Corrupt("model.{}: wanted true or false", key);
    }
    RETURN_IF_ERROR(ReadVocab(model));
    if (auto e = model["unk_token"]; !e.error() && !e.is_null()) {
      std::string_view unk;
      if (e.get(unk)) return Corrupt("model.unk_token: wanted a string or null");
      const auto it = ids_.find(unk);
      if (it == ids_.end())
        return Corrupt("model.unk_token {} is not in the vocabulary", QuotedForMessage(unk));
      bpe.unk_id = it->second;
    }
    return ReadMerges(model);
  }

  Result<int32_t> ReadId(element value, std::string_view token) const {
    int64_t id = 0;
    if (value.get(id)) {
      return Corrupt("the id of token {} is not an integer in range", QuotedForMessage(token));
    }
    if (id < 0 || id > kMaxTokenId) {
      return Corrupt("the id of token {} is {}; ids go from 0 to {}", QuotedForMessage(token), id,
                     kMaxTokenId);
    }
    return static_cast<int32_t>(id);
  }

  std::string& TokenSlot(int32_t id) {
    const auto index = static_cast<size_t>(id);
    if (index >= spec_.tokens.size()) spec_.tokens.resize(index + 1);
    return spec_.tokens[index];
  }

  Status ReadVocab(object model) {
    object vocab;
    if (model["vocab"].get(vocab))
      return Corrupt("model.vocab: wanted an object of tokens and ids");
    size_t entries = 0;
    for (const auto field : vocab) {
      ++entries;
      if (field.key.size() > kMaxTokenBytes) {
        return Corrupt("token {} has {} bytes; at most {} are allowed", QuotedForMessage(field.key),
                       field.key.size(), kMaxTokenBytes);
      }
      ASSIGN_OR_RETURN(const int32_t id, ReadId(field.value, field.key));
      if (field.key.empty()) continue;  // can neither be written nor read
      std::string& slot = TokenSlot(id);
      if (!slot.empty()) {
        return Corrupt("tokens {} and {} have the same id {}", QuotedForMessage(slot),
                       QuotedForMessage(field.key), id);
      }
      if (!ids_.emplace(field.key, id).second) {
        return Corrupt("token {} is in the vocabulary twice", QuotedForMessage(field.key));
      }
      slot = field.key;
    }
    if (entries == 0) return Corrupt("model.vocab is empty");
    return {};
  }

  Result<int32_t> MergePart(std::string_view part, size_t rank) const {
    if (part.empty())
      return Corrupt("merge {} has an empty side: its product would be made of itself", rank);
    const auto it = ids_.find(part);
    if (it == ids_.end()) {
      return Corrupt("merge {} names {}, which is not in the vocabulary", rank,
                     QuotedForMessage(part));
    }
    return it->second;
  }

  Status ReadMerges(object model) {
    array merges;
    if (model["merges"].get(merges)) return Corrupt("model.merges: wanted a list");
    spec_.bpe.merges.reserve(merges.size());
    std::string product;
    size_t rank = 0;
    for (const element merge : merges) {
      std::string_view left;
      std::string_view right;
      array pair;
      if (std::string_view line; !merge.get(line)) {
        const size_t space = line.find(' ');
        if (space == std::string_view::npos ||
            line.find(' ', space + 1) != std::string_view::npos) {
          return Corrupt("merge {} is {}; wanted two tokens with one space between", rank,
                         QuotedForMessage(line));
        }
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else if (merge.get(pair) || pair.size() != 2 || pair.at(0).get(left) ||
                 pair.at(1).get(right)) {
        return Corrupt("merge {} is not a pair of tokens", rank);
      }
      ASSIGN_OR_RETURN(const int32_t left_id, MergePart(left, rank));
      ASSIGN_OR_RETURN(const int32_t right_id, MergePart(right, rank));
      product.assign(left);
      product += right;
      const auto it = ids_.find(product);
      if (it == ids_.end()) {
        return Corrupt("merge {} makes {}, which is not in the vocabulary", rank,
                       QuotedForMessage(product));
      }
      spec_.bpe.merges.push_back({left_id, right_id, it->second});
      ++rank;
    }
    return {};
  }

  Status ReadAddedTokens(object top) {
    auto list = top["added_tokens"];
    if (list.error() || list.is_null()) return {};
    array tokens;
    if (list.get(tokens)) return Corrupt("added_tokens: wanted a list");
    for (const element entry : tokens) {
      object fields;
      std::string_view content;
      if (entry.get(fields) || fields["content"].get(content)) {
        return Corrupt("added token {}: wanted an object with \"id\" and \"content\"",
                       spec_.added.size());
      }
      if (content.empty() || content.size() > kMaxAddedTokenBytes) {
        return Corrupt("added token {} has {} bytes; 1 to {} are allowed",
                       QuotedForMessage(content), content.size(), kMaxAddedTokenBytes);
      }
      element id_field;
      if (fields["id"].get(id_field))
        return Corrupt("added token {} has no id", QuotedForMessage(content));
      AddedToken token;
      ASSIGN_OR_RETURN(token.id, ReadId(id_field, content));
      token.content = content;
      const std::pair<const char*, bool*> flags[] = {{"single_word", &token.single_word},
                                                     {"lstrip", &token.lstrip},
                                                     {"rstrip", &token.rstrip},
                                                     {"normalized", &token.normalized},
                                                     {"special", &token.special}};
      for (const auto& [key, value] : flags) {
        auto e = fields[key];
        if (!e.error() && e.get(*value)) {
          return Corrupt("added token {}: {}: wanted true or false", QuotedForMessage(content),
                         key);
        }
      }
      RETURN_IF_ERROR(AddToken(std::move(token)));
    }
    return {};
  }

  Status AddToken(AddedToken token) {
    const auto known = ids_.find(token.content);
    if (known != ids_.end() && known->second != token.id) {
      return Corrupt("added token {} has id {}, but its text already has id {}",
                     QuotedForMessage(token.content), token.id, known->second);
    }
    std::string& slot = TokenSlot(token.id);
    if (!slot.empty() && slot != token.content) {
      return Corrupt("added token {} and token {} have the same id {}",
                     QuotedForMessage(token.content), QuotedForMessage(slot), token.id);
    }
    const bool twice = std::any_of(spec_.added.begin(), spec_.added.end(),
                                   [&](const AddedToken& t) { return t.id == token.id; });
    if (twice) return Corrupt("added token {} is listed twice", QuotedForMessage(token.content));
    slot = token.content;
    spec_.added.push_back(std::move(token));
    return {};
  }

  /// Vocabularies learnt from clean text may lack control characters and lead bytes of rare planes
  /// (SmolLM2); without the others no text can be written.
  Status CheckBytesHaveTokens() const {
    for (uint32_t b = 0; b < 0xF1; ++b) {
      const bool control = (b < 0x20 && b != '\t' && b != '\n') || b == 0x7F;
      if (control || b == 0xC0 || b == 0xC1) continue;  // the last two are never in UTF-8
      const std::string name =
          VocabStringOfBytes(std::string(1, static_cast<char>(static_cast<uint8_t>(b))));
      if (ids_.find(name) == ids_.end()) {
        return Corrupt(
            "the vocabulary has no token for byte 0x{:02x} (character {}); a byte-level vocabulary "
            "needs it",
            b, QuotedForMessage(name));
      }
    }
    return {};
  }

  Status CheckTemplateIds() const {
    for (const auto* ids : {&spec_.prefix, &spec_.suffix}) {
      for (const int32_t id : *ids) {
        if (static_cast<size_t>(id) >= spec_.tokens.size() ||
            spec_.tokens[static_cast<size_t>(id)].empty()) {
          return Corrupt("post_processor writes id {}, which no token has", id);
        }
      }
    }
    return {};
  }

  std::string where_;
  TokenizerSpec& spec_;
  std::unordered_map<std::string_view, int32_t>
      ids_;  // of the vocabulary; keys live in the parsed document
};

}  // namespace

Result<TokenizerSpec> ParseTokenizerJson(std::string_view text, const std::string& where) {
  // (simdjson copies with memcpy, which wants an address even for no bytes)
  if (text.empty()) return MakeError(ErrorCode::kCorrupt, "{}: not JSON: it is empty", where);
  simdjson::dom::parser parser;
  element root;
  if (const auto code = parser.parse(text.data(), text.size()).get(root)) {
    return MakeError(ErrorCode::kCorrupt, "{}: not JSON: {}", where, simdjson::error_message(code));
  }
  TokenizerSpec spec;
  RETURN_IF_ERROR(Reader(where, spec).Read(root));
  return spec;
}

}  // namespace carpool
