// A tokenizer as GGUF metadata: the inverse of tokenizer/gguf_tokenizer.h.
#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "lab/gguf_metadata.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/gguf_pre_tokenizers.h"
#include "tokenizer/gguf_tokenizer.h"

namespace carpool {
namespace {

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

/// Every id has a name, as GGUF wants it.
Vocabulary FullVocabulary(const TokenizerSpec& spec, size_t vocab_size) {
  Vocabulary v{spec.tokens, std::vector<int32_t>(spec.tokens.size(), kGgufNormal)};
  for (const AddedToken& token : spec.added) {
    v.tokens[static_cast<size_t>(token.id)] = token.content;
    v.types[static_cast<size_t>(token.id)] = token.special ? kGgufControl : kGgufUserDefined;
  }
  v.tokens.resize(std::max(v.tokens.size(), vocab_size));
  v.types.resize(v.tokens.size(), kGgufUnused);
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (!v.tokens[i].empty()) continue;
    v.tokens[i] = fmt::format("[PAD{}]", i);
    v.types[i] = kGgufUnused;
  }
  return v;
}

Status WriteByteLevel(const TokenizerSpec& spec, const Vocabulary& v, GgufWriter& out) {
  std::vector<std::string> splits;
  for (const PreTokenizerStep& step : spec.pre_tokenizer) {
    if (!step.pattern.empty()) splits.push_back(step.pattern);
  }
  const GgufPreTokenizer* pre = FindGgufPreTokenizer(splits, spec.bpe.ignore_merges);
  if (pre == nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "the tokenizer's pre-tokenizer has no name in GGUF; known: {}",
                     GgufPreTokenizerNames());
  }
  out.SetString("tokenizer.ggml.model", "gpt2");
  out.SetString("tokenizer.ggml.pre", pre->name);
  std::vector<std::string> merges;
  for (const auto& m : spec.bpe.merges) {
    merges.push_back(v.tokens[static_cast<size_t>(m.left)] + " " +
                     v.tokens[static_cast<size_t>(m.right)]);
  }
  out.SetStrings("tokenizer.ggml.merges", merges);
  return {};
}

/// Scores from which the same merges follow: all ways to cut a token in two are one rank. That is
/// how transformers made the merges from a SentencePiece model; a merge list that no scores give is
/// refused.
Result<std::vector<float>> ScoresOfMerges(const TokenizerSpec& spec, const Vocabulary& v) {
  std::vector<float> scores(v.tokens.size(), 0.0f);
  std::vector<size_t> cuts(v.tokens.size(), 0);
  float rank = 0.0f;
  int32_t last = -1;
  for (const auto& m : spec.bpe.merges) {
    const auto product = static_cast<size_t>(m.product);
    if (m.product != last && cuts[product] > 0) {
      return MakeError(
          ErrorCode::kUnsupported,
          "the tokenizer's merges do not follow from one score per token, which GGUF has "
          "for SentencePiece: '{}' comes twice",
          v.tokens[product]);
    }
    if (m.product != last) scores[product] = rank -= 1.0f;
    last = m.product;
    ++cuts[product];
  }
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < v.tokens.size(); ++i)
    if (v.types[i] == kGgufNormal || v.types[i] == kGgufUserDefined) ids.emplace(v.tokens[i], i);
  for (const auto& [piece, id] : ids) {
    size_t wanted = 0;
    for (size_t cut = 1; cut < piece.size(); ++cut)
      wanted += ids.contains(piece.substr(0, cut)) && ids.contains(piece.substr(cut));
    if (wanted != cuts[id]) {
      return MakeError(
          ErrorCode::kUnsupported,
          "the tokenizer's merges do not follow from one score per token, which GGUF has "
          "for SentencePiece: '{}' has {} of {} merges",
          v.tokens[id], cuts[id], wanted);
    }
    if (wanted == 0) scores[id] = rank - 1.0f;  // never the product of a merge
  }
  return scores;
}

Status WriteSentencePiece(const TokenizerSpec& spec, Vocabulary& v, GgufWriter& out) {
  if (!spec.bpe.byte_fallback || spec.bpe.unk_id < 0) {
    return MakeError(
        ErrorCode::kUnsupported,
        "the tokenizer is neither byte-level nor SentencePiece with byte fallback and an "
        "unknown token, the two that GGUF knows");
  }
  for (size_t i = 0; i < v.tokens.size(); ++i)
    if (ByteOfFallbackToken(v.tokens[i])) v.types[i] = kGgufByte;
  v.types[static_cast<size_t>(spec.bpe.unk_id)] = kGgufUnknown;
  ASSIGN_OR_RETURN(const std::vector<float> scores, ScoresOfMerges(spec, v));
  const bool prepend =
      std::any_of(spec.normalizer.begin(), spec.normalizer.end(),
                  [](const auto& step) { return step.kind == NormalizerStep::Kind::kPrepend; }) ||
      std::any_of(spec.pre_tokenizer.begin(), spec.pre_tokenizer.end(), [](const auto& step) {
        return step.kind == PreTokenizerStep::Kind::kMetaspace &&
               step.prepend != MetaspacePrepend::kNever;
      });
  out.SetString("tokenizer.ggml.model", "llama");
  out.SetString("tokenizer.ggml.pre", "default");
  out.SetFloats("tokenizer.ggml.scores", scores);
  out.SetBool("tokenizer.ggml.add_space_prefix", prepend);
  out.SetU32("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(spec.bpe.unk_id));
  return {};
}

void WriteSpecialIds(const Vocabulary& v, const TokenizerConfig& config, const ModelConfig& model,
                     bool unknown, GgufWriter& out) {
  const std::pair<const char*, const char*> names[] = {{"bos_token", "bos"},
                                                       {"eos_token", "eos"},
                                                       {"pad_token", "padding"},
                                                       {"unk_token", "unknown"}};
  const auto& tokens = v.tokens;
  bool has_eos = false;
  for (const auto& [theirs, ours] : names) {
    for (const auto& [name, text] : config.special_tokens) {
      const auto it = std::find(tokens.begin(), tokens.end(), text);
      if (name != theirs || it == tokens.end() || (name == "unk_token" && !unknown)) continue;
      has_eos = has_eos || name == "eos_token";
      out.SetU32(fmt::format("tokenizer.ggml.{}_token_id", ours),
                 static_cast<uint32_t>(it - tokens.begin()));
    }
  }
  // Further ends of a turn have two keys.
  const char* keys[] = {"eos", "eot", "eom"};
  size_t key = has_eos ? 1 : 0;
  for (const int32_t id : model.eos_ids) {
    const bool is_eos =
        has_eos &&
        std::any_of(config.special_tokens.begin(), config.special_tokens.end(), [&](const auto& t) {
          return t.first == "eos_token" && t.second == tokens[static_cast<size_t>(id)];
        });
    if (is_eos || key >= std::size(keys)) continue;
    out.SetU32(fmt::format("tokenizer.ggml.{}_token_id", keys[key++]), static_cast<uint32_t>(id));
  }
}

}  // namespace

Status WriteTokenizerMetadata(const TokenizerSpec& spec, const TokenizerConfig& config,
                              const ModelConfig& model, GgufWriter& out) {
  Vocabulary v = FullVocabulary(spec, model.vocab_size);
  RETURN_IF_ERROR(spec.byte_level ? WriteByteLevel(spec, v, out)
                                  : WriteSentencePiece(spec, v, out));
  out.SetStrings("tokenizer.ggml.tokens", v.tokens);
  out.SetInts("tokenizer.ggml.token_type", v.types);
  WriteSpecialIds(v, config, model, spec.byte_level, out);
  out.SetBool("tokenizer.ggml.add_bos_token", !spec.prefix.empty());
  out.SetBool("tokenizer.ggml.add_eos_token", !spec.suffix.empty());
  for (const auto& [name, source] : config.chat_templates) {
    out.SetString(name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + name,
                  source);
  }
  return {};
}

}  // namespace carpool
