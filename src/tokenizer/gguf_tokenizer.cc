#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "tokenizer/gguf_pre_tokenizers.h"
#include "tokenizer/utf8.h"
#include "weights/gguf_fields.h"

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kSpace = "▁";
constexpr size_t kMaxPieceBytes = 1024;  // of a SentencePiece token: every split of it is tried

std::string Quoted(std::string_view text) { return OrderedJson(text).dump(); }

class Writer {
 public:
  explicit Writer(const GgufModel& model) : model_(model), fields_(model) {}

  Result<std::string> Json() {
    const auto kind = fields_.Text("tokenizer.ggml.model");
    tokens_ = fields_.Array("tokenizer.ggml.tokens", GgufType::kString);
    types_ = fields_.Array("tokenizer.ggml.token_type", GgufType::kI32);
    RETURN_IF_ERROR(fields_.status());
    if (!kind || tokens_ == nullptr) {
      return MakeError(ErrorCode::kNotFound, "{}: no tokenizer in it: {} is missing", model_.path(),
                       !kind ? "tokenizer.ggml.model" : "tokenizer.ggml.tokens");
    }
    if (types_ != nullptr && types_->count != tokens_->count) {
      return Corrupt("token_type has {} entries for {} tokens", types_->count, tokens_->count);
    }
    for (size_t i = 0; i < tokens_->count; ++i) {
      if (InvalidUtf8At(tokens_->strings[i])) return Corrupt("token {} is not valid UTF-8", i);
    }
    OrderedJson steps;
    std::string merges;
    if (*kind == "gpt2") {
      RETURN_IF_ERROR(ByteLevel(steps, merges));
    } else if (*kind == "llama") {
      RETURN_IF_ERROR(SentencePiece(steps, merges));
    } else {
      return MakeError(ErrorCode::kUnsupported,
                       "{}: tokenizer.ggml.model '{}' is not supported; supported: gpt2, llama",
                       model_.path(), Printable(*kind));
    }
    RETURN_IF_ERROR(Template(steps));
    RETURN_IF_ERROR(fields_.status());
    // By hand: a vocabulary is too large for a tree.
    std::string out = R"({"version":"1.0","added_tokens":)" + AddedTokens().dump();
    for (const auto& [key, value] : steps.items()) out += "," + Quoted(key) + ":" + value.dump();
    out += R"(,"model":{"type":"BPE","ignore_merges":)";
    out += ignore_merges_ ? "true" : "false";
    if (unk_) out += R"(,"byte_fallback":true,"fuse_unk":true,"unk_token":)" + Quoted(Text(*unk_));
    out += R"(,"vocab":{)";
    bool first = true;
    for (size_t i = 0; i < tokens_->count; ++i) {
      if (!InVocabulary(i)) continue;
      out += (first ? "" : ",") + Quoted(Text(i)) + ":" + std::to_string(i);
      first = false;
    }
    return out + R"(},"merges":[)" + merges + "]}}";
  }

 private:
  template <typename... Args>
  Error Corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kCorrupt, "{}: tokenizer.ggml: {}", model_.path(),
                     fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view Text(size_t id) const { return tokens_->strings[id]; }
  int64_t Type(size_t id) const {
    return types_ == nullptr ? int64_t{kGgufNormal} : std::get<int64_t>(types_->At(id));
  }
  bool InVocabulary(size_t id) const {
    const int64_t type = Type(id);
    // Control tokens of byte-level vocabularies are not written in its alphabet.
    return !Text(id).empty() && type != kGgufUnused &&
           (unk_ || (type != kGgufControl && type != kGgufUserDefined));
  }

  OrderedJson AddedTokens() const {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < tokens_->count; ++i) {
      const int64_t type = Type(i);
      const bool special = type == kGgufControl || (unk_ && type == kGgufUnknown);
      if (!special && type != kGgufUserDefined) continue;
      list.push_back({{"id", i}, {"content", Text(i)}, {"special", special}});
    }
    return list;
  }

  Status ByteLevel(OrderedJson& steps, std::string& merges) {
    const auto name = fields_.Text("tokenizer.ggml.pre").value_or("default");
    const GgufPreTokenizer* pre = FindGgufPreTokenizer(name);
    if (pre == nullptr) {
      return MakeError(ErrorCode::kUnsupported,
                       "{}: tokenizer.ggml.pre '{}' is not supported; supported: {}", model_.path(),
                       Printable(name), GgufPreTokenizerNames());
    }
    ignore_merges_ = pre->ignore_merges;
    add_bos_ = pre->add_bos;
    if (pre->nfc) steps["normalizer"] = {{"type", "NFC"}};
    OrderedJson list = OrderedJson::array();
    for (const auto& regex : pre->splits) {
      list.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}});
    }
    list.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    steps["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(list)}};
    steps["decoder"] = {{"type", "ByteLevel"}};
    const GgufArray* lines = fields_.Array("tokenizer.ggml.merges", GgufType::kString);
    for (size_t i = 0; lines != nullptr && i < lines->count; ++i) {
      if (InvalidUtf8At(lines->strings[i])) return Corrupt("merge {} is not valid UTF-8", i);
      merges += (i == 0 ? "" : ",") + Quoted(lines->strings[i]);
    }
    return {};
  }

  Status SentencePiece(OrderedJson& steps, std::string& merges) {
    add_bos_ = true;
    const auto unknown = fields_.Uint("tokenizer.ggml.unknown_token_id");
    unk_ = static_cast<size_t>(unknown.value_or(0));
    if (*unk_ >= tokens_->count) return Corrupt("unknown_token_id {} is not a token", *unk_);
    const bool prefix = fields_.Flag("tokenizer.ggml.add_space_prefix").value_or(true);
    OrderedJson normalizers = OrderedJson::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    normalizers.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
    steps["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    OrderedJson decoders = {
        {{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
        {{"type", "ByteFallback"}},
        {{"type", "Fuse"}}};
    if (prefix)
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    steps["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    return MergesOfScores(merges);
  }

  /// SentencePiece joins the two neighbours whose union scores best: every way to cut a token in
  /// two tokens is a merge, ranked by the token's score.
  Status MergesOfScores(std::string& merges) {
    const GgufArray* scores = fields_.Array("tokenizer.ggml.scores", GgufType::kF32);
    if (scores == nullptr || scores->count != tokens_->count) {
      RETURN_IF_ERROR(fields_.status());
      return Corrupt("scores has {} entries for {} tokens", scores == nullptr ? 0 : scores->count,
                     tokens_->count);
    }
    std::unordered_map<std::string_view, size_t> ids;
    for (size_t i = 0; i < tokens_->count; ++i) {
      if (Type(i) == kGgufNormal || Type(i) == kGgufUserDefined) ids.emplace(Text(i), i);
    }
    struct Merge {
      double score;
      size_t left, right;
    };
    std::vector<Merge> found;
    for (const auto& [piece, id] : ids) {
      if (piece.size() > kMaxPieceBytes)
        return Corrupt("token {} has {} bytes, wanted at most {}", id, piece.size(),
                       kMaxPieceBytes);
      for (size_t cut = 1; cut < piece.size(); ++cut) {
        const auto left = ids.find(piece.substr(0, cut)), right = ids.find(piece.substr(cut));
        if (left == ids.end() || right == ids.end()) continue;
        found.push_back({std::get<double>(scores->At(id)), left->second, right->second});
      }
    }
    std::sort(found.begin(), found.end(), [](const Merge& a, const Merge& b) {
      if (a.score != b.score) return a.score > b.score;
      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    });
    for (const Merge& m : found) {
      merges += fmt::format("{}[{},{}]", merges.empty() ? "" : ",", Quoted(Text(m.left)),
                            Quoted(Text(m.right)));
    }
    return {};
  }

  /// What is put around a text.
  Status Template(OrderedJson& steps) {
    OrderedJson single = OrderedJson::array(), special = OrderedJson::object();
    const auto add = [&](std::string_view name) -> Status {
      const auto id = fields_.Uint(fmt::format("tokenizer.ggml.{}_token_id", name));
      if (!id) return {};
      if (*id >= tokens_->count) return Corrupt("{}_token_id {} is not a token", name, *id);
      single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
      special[std::string(name)] = {
          {"id", name}, {"ids", {*id}}, {"tokens", {Text(static_cast<size_t>(*id))}}};
      return {};
    };
    if (fields_.Flag("tokenizer.ggml.add_bos_token").value_or(add_bos_)) {
      RETURN_IF_ERROR(add("bos"));
    }
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (fields_.Flag("tokenizer.ggml.add_eos_token").value_or(false)) {
      RETURN_IF_ERROR(add("eos"));
    }
    if (!special.empty()) {
      steps["post_processor"] = {{"type", "TemplateProcessing"},
                                 {"single", std::move(single)},
                                 {"pair", OrderedJson::array()},
                                 {"special_tokens", std::move(special)}};
    }
    return {};
  }

  const GgufModel& model_;
  GgufFields fields_;
  const GgufArray* tokens_ = nullptr;
  const GgufArray* types_ = nullptr;
  bool ignore_merges_ = false;
  bool add_bos_ = false;
  std::optional<size_t> unk_;  // SentencePiece only
};

}  // namespace

Result<std::string> GgufTokenizerJson(const GgufModel& model) { return Writer(model).Json(); }

Result<TokenizerConfig> GgufTokenizerConfig(const GgufModel& model) {
  GgufFields fields(model);
  TokenizerConfig config;
  const GgufArray* tokens = fields.Array("tokenizer.ggml.tokens", GgufType::kString);
  const std::pair<const char*, const char*> names[] = {{"bos", "bos_token"},
                                                       {"eos", "eos_token"},
                                                       {"unknown", "unk_token"},
                                                       {"padding", "pad_token"}};
  for (const auto& [ours, theirs] : names) {
    const auto id = fields.Uint(fmt::format("tokenizer.ggml.{}_token_id", ours));
    if (id && tokens != nullptr && *id < tokens->count)
      config.special_tokens.emplace_back(theirs, tokens->strings[static_cast<size_t>(*id)]);
  }
  const std::string key = "tokenizer.chat_template";
  if (const auto source = fields.Text(key)) config.chat_templates.emplace_back("default", *source);
  const GgufArray* named = fields.Array("tokenizer.chat_templates", GgufType::kString);
  for (size_t i = 0; named != nullptr && i < named->count; ++i) {
    const std::string name(named->strings[i]);
    if (const auto source = fields.Text(key + "." + name); source && name != "default")
      config.chat_templates.emplace_back(name, *source);
  }
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace carpool
