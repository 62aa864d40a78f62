// Tokenizers from GGUF metadata.
#include "tokenizer/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tokenizer/byte_level.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/gguf_pre_tokenizers.h"
#include "tokenizer/tokenizer.h"
#include "weights/gguf_writer.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

/// A GGUF file with nothing but a tokenizer.
struct TokenizerFile {
  TempDir dir;
  GgufWriter writer;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;

  void Add(const std::string& token, int32_t type = 1, float score = 0.0f) {
    tokens.push_back(token);
    types.push_back(type);
    scores.push_back(score);
  }
  std::string Write() {
    writer.SetStrings("tokenizer.ggml.tokens", tokens);
    writer.SetInts("tokenizer.ggml.token_type", types);
    const std::string path = dir.path() + "/t.gguf";
    EXPECT_TRUE(writer.Write(path, [](const ByteSink&) { return Status(); }));
    return path;
  }
};

/// The 256 bytes and a few merges.
void FillByteLevel(TokenizerFile& f, const std::string& pre) {
  f.writer.SetString("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) f.writer.SetString("tokenizer.ggml.pre", pre);
  for (int b = 0; b < 256; ++b) f.Add(VocabStringOfBytes(std::string(1, static_cast<char>(b))));
  f.Add("he");
  f.Add("ll");
  f.Add("hell");
  f.Add("hello");
  f.writer.SetStrings("tokenizer.ggml.merges",
                      std::vector<std::string>{"h e", "l l", "he ll", "hell o"});
}

TEST(GgufTokenizer, ByteLevelWithControlTokens) {
  TokenizerFile f;
  FillByteLevel(f, "qwen2");
  f.Add("<|im_start|>", 3);
  f.Add("<think>", 4);
  f.Add("[PAD262]", 5);
  f.writer.SetU32("tokenizer.ggml.bos_token_id", 260);
  f.writer.SetU32("tokenizer.ggml.eos_token_id", 260);
  f.writer.SetString("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
  const std::string path = f.Write();
  const auto t = Tokenizer::Load(path);
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_THAT(*t->Encode("<|im_start|>hello<think>"), ElementsAre(260, 259, 261));
  EXPECT_THAT(*t->Encode("he"), ElementsAre(256));
  EXPECT_TRUE(t->IsSpecial(260));
  EXPECT_FALSE(t->IsSpecial(261));
  EXPECT_FALSE(t->HasToken(262));
  EXPECT_EQ(t->SpecialTokenText("bos_token"), "<|im_start|>");
  EXPECT_EQ(*t->Decode(std::vector<int32_t>{260, 259, 261}, true), "hello<think>");
  const auto chat = ChatTemplate::Load(path);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(*chat->Render(R"({"messages":[{"role":"user","content":"hi"}]})"), "<|im_start|>hi");
}

TEST(GgufTokenizer, BytesWithoutATokenAreLeftOut) {
  TokenizerFile f;
  FillByteLevel(f, "smollm");
  for (const size_t byte : {0x04u, 0x1Du, 0xF1u, 0xFFu}) f.types[byte] = 5;
  const auto t = Tokenizer::Load(f.Write());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(*t->Encode("he\x04y\x1D"), *t->Encode("hey"));
}

TEST(GgufTokenizer, BosIsAddedWhenTheFileOrItsPreTokenizerSaysSo) {
  for (const int said : {-1, 0, 1}) {
    for (const std::string pre : {"gpt-2", "llama-bpe"}) {
      TokenizerFile f;
      FillByteLevel(f, pre);
      f.Add("<s>", 3);
      f.writer.SetU32("tokenizer.ggml.bos_token_id", 260);
      if (said >= 0) f.writer.SetBool("tokenizer.ggml.add_bos_token", said == 1);
      const auto t = Tokenizer::Load(f.Write());
      ASSERT_TRUE(t) << t.error().message;
      const bool added = said == 1 || (said < 0 && pre == "llama-bpe");
      EXPECT_EQ(t->Encode("hello")->size(), added ? 2u : 1u) << pre << said;
    }
  }
}

std::vector<std::string> PiecesOf(const std::string& pre, std::string_view text) {
  TokenizerFile f;
  FillByteLevel(f, pre);
  const auto t = Tokenizer::Load(f.Write());
  EXPECT_TRUE(t) << (t ? "" : t.error().message);
  if (!t) return {};
  return *t->PreTokenize(text);
}

TEST(GgufTokenizer, NamedPreTokenizersCutAsTheirModelsDo) {
  const std::string digits = "Hello  world 123456!\n\n  x";
  const auto glm = PiecesOf("glm4", digits);
  EXPECT_THAT(glm, ElementsAre("Hello", " ", " world", " ", "123", "456", "!\n\n", " ", " x"));
  EXPECT_EQ(PiecesOf("chatglm-bpe", digits), glm);
  EXPECT_EQ(PiecesOf("llama-bpe", digits), glm);
  EXPECT_THAT(PiecesOf("qwen2", digits), ElementsAre("Hello", " ", " world", " ", "1", "2", "3",
                                                     "4", "5", "6", "!\n\n", " ", " x"));
  EXPECT_THAT(PiecesOf("smollm", "I've 42"), ElementsAre("I", "'ve", " ", "4", "2"));
  EXPECT_THAT(PiecesOf("olmo", "I've 42\n x"), ElementsAre("I", "'ve", " 42", "\n", " x"));
  EXPECT_THAT(PiecesOf("deepseek-v3", "x1234 价格是y"),
              ElementsAre("x", "123", "4", " ", "价格是", "y"));
  EXPECT_THAT(PiecesOf("gpt-4o", "HelloWorld don't"), ElementsAre("Hello", "World", " don't"));
  EXPECT_THAT(PiecesOf("kimi-k2", "ab价格cd 12345"),
              ElementsAre("ab", "价格", "cd", " ", "123", "45"));
  EXPECT_THAT(PiecesOf("deepseek-llm", "Hi there\n42!"),
              ElementsAre("Hi", " there", "\n", "42", "!"));
  EXPECT_THAT(PiecesOf("", "a+b 1234"), ElementsAre("a", "+", "b", " ", "123", "4"));
}

TEST(GgufTokenizer, EveryNamedPreTokenizerLosesNothing) {
  std::string names = GgufPreTokenizerNames();
  size_t count = 0;
  for (size_t at = 0; at < names.size(); ++count) {
    const size_t end = std::min(names.find(", ", at), names.size());
    const std::string name = names.substr(at, end - at),
                      text = "It's 2026,\n\n  价格 λx.(é+1)\t🙂 end  ";
    std::string joined;
    for (const auto& piece : PiecesOf(name, text)) joined += piece;
    EXPECT_EQ(joined, text) << name;
    at = end + 2;
  }
  EXPECT_GE(count, 20u);
}

/// Joins, again and again, the leftmost neighbours whose union scores best.
std::vector<int32_t> SlowSentencePiece(const TokenizerFile& f, const std::string& text) {
  std::vector<std::string> parts;
  const std::string spaced = "▁" + text;  // no spaces inside in these tests
  for (size_t i = 0; i < spaced.size();) {
    size_t n = 1;
    while (i + n < spaced.size() && (static_cast<uint8_t>(spaced[i + n]) & 0xC0) == 0x80) ++n;
    parts.push_back(spaced.substr(i, n));
    i += n;
  }
  const auto find = [&](const std::string& s) -> int32_t {
    for (size_t i = 0; i < f.tokens.size(); ++i) {
      if (f.tokens[i] == s && f.types[i] == 1) return static_cast<int32_t>(i);
    }
    return -1;
  };
  while (true) {
    size_t best = parts.size();
    float score = -1e30f;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t id = find(parts[i] + parts[i + 1]);
      if (id >= 0 && f.scores[static_cast<size_t>(id)] > score) {
        score = f.scores[static_cast<size_t>(id)];
        best = i;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const auto& part : parts) {
    if (const int32_t id = find(part); id >= 0) {
      ids.push_back(id);
      continue;
    }
    for (const char c : part) ids.push_back(3 + static_cast<uint8_t>(c));  // the byte tokens
  }
  return ids;
}

void FillSentencePiece(TokenizerFile& f) {
  f.writer.SetString("tokenizer.ggml.model", "llama");
  f.writer.SetU32("tokenizer.ggml.bos_token_id", 1);
  f.writer.SetU32("tokenizer.ggml.eos_token_id", 2);
  f.writer.SetU32("tokenizer.ggml.unknown_token_id", 0);
  f.Add("<unk>", 2);
  f.Add("<s>", 3);
  f.Add("</s>", 3);
  for (int b = 0; b < 256; ++b) f.Add(fmt::format("<0x{:02X}>", b), 6);
  float score = 0.0f;
  for (const char* piece : {"ab", "▁a", "bc", "abc", "▁ab", "ca", "aa", "cab", "▁abc", "aab",
                            "bcca", "▁", "a", "b", "c", "é"}) {
    f.Add(piece, 1, score);
    score -= 1.0f;
  }
}

TEST(GgufTokenizer, SentencePieceMergesByScore) {
  TokenizerFile f;
  FillSentencePiece(f);
  f.writer.SetFloats("tokenizer.ggml.scores", f.scores);
  f.writer.SetBool("tokenizer.ggml.add_bos_token", false);
  const auto t = Tokenizer::Load(f.Write());
  ASSERT_TRUE(t) << t.error().message;
  std::mt19937 random(1);
  const std::vector<std::string> letters = {"a", "b", "c", "é", "x", "🙂"};
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 12; n > 0; --n) text += letters[random() % (i % 2 == 0 ? 3 : 6)];
    EXPECT_EQ(*t->Encode(text), SlowSentencePiece(f, text)) << text;
    EXPECT_EQ(*t->Decode(*t->Encode(text), false), text);
  }
  EXPECT_EQ(*t->Decode(*t->Encode("ab  c\nx"), false), "ab  c\nx");
}

TEST(GgufTokenizer, SentencePieceAddsBosByDefault) {
  TokenizerFile f;
  FillSentencePiece(f);
  f.writer.SetFloats("tokenizer.ggml.scores", f.scores);
  const auto t = Tokenizer::Load(f.Write());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(t->Encode("abc")->front(), 1);
  EXPECT_EQ(t->Encode("<s>abc", true, false)->front(), 1);
}

std::string LoadError(TokenizerFile& f) {
  const std::string path = f.Write();
  const auto t = Tokenizer::Load(path);
  return t ? "(no error)" : t.error().message.substr(path.size());
}

TEST(GgufTokenizer, BadOnesAreNamed) {
  const auto error = [](auto fill) {
    TokenizerFile f;
    fill(f);
    return LoadError(f);
  };
  EXPECT_THAT(error([](TokenizerFile&) {}), HasSubstr("tokenizer.ggml.model is missing"));
  EXPECT_THAT(error([](TokenizerFile& f) { f.writer.SetString("tokenizer.ggml.model", "rwkv"); }),
              HasSubstr("'rwkv' is not supported; supported: gpt2, llama"));
  EXPECT_THAT(
      error([](TokenizerFile& f) { FillByteLevel(f, "klingon"); }),
      HasSubstr("tokenizer.ggml.pre 'klingon' is not supported; supported: default, gpt-2"));
  EXPECT_THAT(error([](TokenizerFile& f) {
                FillByteLevel(f, "gpt-2");
                f.tokens.emplace_back("x y");
              }),
              HasSubstr("token_type has 260 entries for 261 tokens"));
  EXPECT_THAT(error([](TokenizerFile& f) {
                FillByteLevel(f, "gpt-2");
                f.Add("\xFF\xFE");
              }),
              HasSubstr("token 260 is not valid UTF-8"));
  EXPECT_THAT(error([](TokenizerFile& f) { FillSentencePiece(f); }),
              HasSubstr("scores has 0 entries for 275 tokens"));
  EXPECT_THAT(error([](TokenizerFile& f) {
                FillSentencePiece(f);
                f.Add(std::string(2000, 'a'));
                f.writer.SetFloats("tokenizer.ggml.scores", f.scores);
              }),
              HasSubstr("token 275 has 2000 bytes, wanted at most 1024"));
  EXPECT_THAT(error([](TokenizerFile& f) {
                FillByteLevel(f, "llama-bpe");
                f.writer.SetU32("tokenizer.ggml.bos_token_id", 4000000);
              }),
              HasSubstr("bos_token_id 4000000 is not a token"));
  EXPECT_THAT(error([](TokenizerFile& f) {
                f.writer.SetString("tokenizer.ggml.model", "gpt2");
                f.Add("only");
              }),
              HasSubstr(": tokenizer: "));
}

}  // namespace
}  // namespace carpool
