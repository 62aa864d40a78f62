// A SentencePiece-like tokenizer.json as GGUF metadata and read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lab/gguf_metadata.h"
#include "tokenizer/test_tokenizers.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using OrderedJson = nlohmann::ordered_json;

/// As transformers writes one: every way to cut a piece into two pieces is a merge, pieces in order
/// of their scores.
OrderedJson SentencePieceJson(const std::vector<std::string>& pieces) {
  OrderedJson vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = vocab.size();
  for (const char* letter : {"▁", "a", "b", "c"}) vocab[letter] = vocab.size();
  for (const std::string& piece : pieces) vocab[piece] = vocab.size();
  OrderedJson merges = OrderedJson::array(), added = OrderedJson::array();
  for (const std::string& piece : pieces) {
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const std::string left = piece.substr(0, cut), right = piece.substr(cut);
      // (a cut inside a character makes no key of the vocabulary)
      if (vocab.contains(left) && vocab.contains(right)) merges.push_back({left, right});
    }
  }
  for (const auto& [id, name] : {std::pair(0, "<unk>"), std::pair(1, "<s>"), std::pair(2, "</s>")})
    added.push_back({{"id", id}, {"content", name}, {"special", true}});
  const OrderedJson normalizers = {
      {{"type", "Prepend"}, {"prepend", "▁"}},
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}};
  const OrderedJson decoders = {
      {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}},
      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"fuse_unk", true},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", merges}}}};
}

/// Writes the tokenizer as GGUF; the path, or the error.
Result<std::string> WriteGguf(const OrderedJson& json, const TempDir& dir) {
  ASSIGN_OR_RETURN(const TokenizerSpec spec, ParseTokenizerJson(json.dump(), "t.json"));
  ModelConfig model;
  model.vocab_size = spec.tokens.size();
  GgufWriter writer;
  RETURN_IF_ERROR(WriteTokenizerMetadata(spec, {}, model, writer));
  const std::string path = dir.path() + "/t.gguf";
  RETURN_IF_ERROR(writer.Write(path, [](const ByteSink&) { return Status(); }));
  return path;
}

const std::vector<std::string> kPieces = {"ab", "▁a",  "bc",   "abc", "▁ab", "ca",
                                          "aa", "cab", "▁abc", "aab", "bcca"};

TEST(GgufTokenizerMetadata, SentencePieceSurvives) {
  const OrderedJson json = SentencePieceJson(kPieces);
  const TempDir dir;
  const auto path = WriteGguf(json, dir);
  ASSERT_TRUE(path) << path.error().message;
  const auto before = Tokenizer::LoadFromJson(json.dump(), "t.json"),
             after = Tokenizer::Load(*path);
  ASSERT_TRUE(before) << before.error().message;
  ASSERT_TRUE(after) << after.error().message;
  std::mt19937 random(1);
  const std::vector<std::string> letters = {"a", "b", "c", " ", "é", "x"};
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 16; n > 0; --n) text += letters[random() % (i % 2 == 0 ? 4 : 6)];
    const auto ids = before->Encode(text, true, false);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(*ids, *after->Encode(text, true, false)) << text;
    EXPECT_EQ(*after->Decode(*ids, false), *before->Decode(*ids, false)) << text;
  }
}

TEST(GgufTokenizerMetadata, WhatScoresCannotSayIsRefused) {
  const TempDir dir;
  const auto error = [&](const OrderedJson& json) {
    const auto written = WriteGguf(json, dir);
    return written ? "" : written.error().message;
  };
  const OrderedJson good = SentencePieceJson(kPieces);
  EXPECT_EQ(error(good), "");
  OrderedJson bad = good;
  auto& merges = bad["model"]["merges"];
  const OrderedJson one = {"a", "bc"};  // one of the two ways to "abc"
  merges.erase(std::find(merges.begin(), merges.end(), one));
  EXPECT_THAT(error(bad), HasSubstr("'abc' has 1 of 2 merges"));
  merges.push_back(one);
  EXPECT_THAT(error(bad), HasSubstr("'abc' comes twice"));
  bad = good;
  bad["model"]["byte_fallback"] = false;
  EXPECT_THAT(error(bad), HasSubstr("byte fallback"));
}

}  // namespace
}  // namespace carpool
