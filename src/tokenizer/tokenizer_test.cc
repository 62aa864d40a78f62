#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tokenizer/normalizer.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/test_tokenizers.h"
#include "tokenizer/utf8.h"

namespace carpool {
namespace {

using test::ByteLevelJson;
using test::FromJson;
using test::OrderedJson;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Strings = std::vector<std::string>;

Tokenizer Must(Result<Tokenizer> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}

Strings PiecesOf(const Tokenizer& t, std::string_view text) {
  auto pieces = t.PreTokenize(text);
  if (!pieces) ADD_FAILURE() << pieces.error().message;
  return *pieces;
}

std::vector<int32_t> Ids(const Tokenizer& t, std::string_view text, bool added = true,
                         bool specials = true) {
  auto ids = t.Encode(text, added, specials);
  if (!ids) ADD_FAILURE() << ids.error().message;
  return *ids;
}

std::string RandomText(std::mt19937& random, size_t max_chars) {
  std::string text;
  const size_t n = random() % (max_chars + 1);
  while (text.size() < n) {
    char32_t c = 0;
    switch (random() % 6) {
      case 0:
        c = static_cast<char32_t>(random() % 0x110000);
        break;
      case 1:
        c = static_cast<char32_t>(random() % 0x3000);
        break;
      case 2:
        c = U" \t\n\r\u00a0\u2003\u3000\u180e"[random() % 8];
        break;
      case 3:
        c = U"'sStTdDmM0129_.,!<|>"[random() % 20];
        break;
      default:
        c = static_cast<char32_t>('a' + random() % 26);
        break;
    }
    if (c >= 0xD800 && c < 0xE000) c = 'x';
    AppendUtf8(c, text);
  }
  return text;
}

struct SplitCase {
  const char* text;
  Strings glm;
  Strings qwen;  // empty: as glm
};

const SplitCase kSplitCases[] = {
    {"Hello  world 123456!\n\n  x",
     {"Hello", " ", " world", " ", "123", "456", "!\n\n", " ", " x"},
     {"Hello", " ", " world", " ", "1", "2", "3", "4", "5", "6", "!\n\n", " ", " x"}},
    {"I'LL don't 'tis", {"I", "'LL", " don", "'t", " '", "tis"}, {}},
    {"a\t\tb  \n c   ", {"a", "\t", "\tb", "  \n", " c", "   "}, {}},
    {"价格是12345元。OK？",
     {"价格是", "123", "45", "元", "。OK", "？"},
     {"价格是", "1", "2", "3", "4", "5", "元", "。OK", "？"}},
    {"foo_bar(1.5e-3)//x\r\n\r\nend ",
     {"foo", "_bar", "(", "1", ".", "5", "e", "-", "3", ")//", "x", "\r\n\r\n", "end", " "},
     {}},
    {"🙂👍🏽 hi", {"🙂👍🏽", " hi"}, {}},
    {"  leading", {" ", " leading"}, {}},
};

TEST(PreTokenize, CutsAsTheGlmAndQwenRegexesDo) {
  const Tokenizer glm = Must(FromJson(ByteLevelJson({test::kGlmRegex})));
  const Tokenizer qwen = Must(FromJson(ByteLevelJson({test::kQwenRegex})));
  for (const SplitCase& c : kSplitCases) {
    EXPECT_EQ(PiecesOf(glm, c.text), c.glm) << c.text;
    EXPECT_EQ(PiecesOf(qwen, c.text), c.qwen.empty() ? c.glm : c.qwen) << c.text;
  }
}

TEST(PreTokenize, CutsAsTheDeepSeekAndGpt2RegexesDo) {
  const Tokenizer deepseek = Must(FromJson(ByteLevelJson(test::kDeepSeekRegexes)));
  EXPECT_EQ(PiecesOf(deepseek, "Das sind 12345 价格かな。é́x\n\n y"),
            (Strings{"Das", " sind", " ", "123", "45", " ", "价格かな", "。", "é́x", "\n\n", " y"}));
  const Tokenizer gpt2 = Must(FromJson(ByteLevelJson({test::kGpt2Regex})));
  EXPECT_EQ(PiecesOf(gpt2, "It's 12345  GB'S\n"),
            (Strings{"It", "'s", " 12345", " ", " GB", "'", "S", "\n"}));
  OrderedJson own_regex = ByteLevelJson({});
  own_regex["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_EQ(PiecesOf(Must(FromJson(own_regex)), "It's 12"), (Strings{" It", "'s", " 12"}));
}

TEST(PreTokenize, WhiteSpaceIsUnicodeWhiteSpace) {
  const Tokenizer t = Must(FromJson(ByteLevelJson({R"(\s+|[^\s]+)"})));
  EXPECT_EQ(PiecesOf(t, "a\u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000b"),
            (Strings{"a", "\u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000", "b"}));
  // White space to older engines only.
  EXPECT_EQ(PiecesOf(t, "a\u180e\u200bb"), (Strings{"a\u180e\u200bb"}));
}

TEST(Tokenizer, EncodesAndDecodesTheBundledModelsGoldenTexts) {
  const Tokenizer t = Must(Tokenizer::Load(test::BundledModelDir()));
  std::ifstream file(test::BundledModelDir() + "/golden/tokenizer.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden.size(), 10u);
  for (const auto& entry : golden) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(Ids(t, text), ids) << text;
    EXPECT_EQ(*t.Decode(ids, false), entry["decoded"].get<std::string>());
  }
  EXPECT_EQ(t.vocab_size(), 4096u);
  EXPECT_EQ(t.SpecialTokenId("eos_token"), 4088);
  EXPECT_EQ(t.SpecialTokenText("pad_token"), "<|pad|>");
  EXPECT_EQ(t.SpecialTokenId("bos_token"), std::nullopt);
  EXPECT_EQ(t.FindToken("<|user|>"), 4092);
  EXPECT_EQ(t.TokenString(t.FindToken("Ġthe").value()), "Ġthe");
  EXPECT_EQ(t.TokenBytes(t.FindToken("Ġthe").value()), " the");
  EXPECT_FALSE(t.FindToken("no such token"));
}

TEST(Tokenizer, DecodeUndoesEncodeAndStreamingEqualsWhole) {
  const Tokenizer t = Must(Tokenizer::Load(test::BundledModelDir()));
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomText(random, 120);
    const auto ids = Ids(t, text);
    ASSERT_EQ(*t.Decode(ids, false), text);
    StreamDecoder stream(t, false);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = stream.Feed(id);
      ASSERT_FALSE(InvalidUtf8At(part));
      streamed += part;
    }
    ASSERT_EQ(streamed, text);  // nothing is left for Finish
    ASSERT_EQ(stream.Finish(), "");
  }
}

TEST(Tokenizer, AnySequenceOfIdsStreamsToWhatItDecodesTo) {
  const Tokenizer t = Must(Tokenizer::Load(test::BundledModelDir()));
  std::mt19937 random(8);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(random() % 20);
    for (auto& id : ids) id = static_cast<int32_t>(random() % (i % 2 == 0 ? 4096u : 260u));
    for (const bool skip : {false, true}) {
      StreamDecoder stream(t, skip);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.Feed(id);
      streamed += stream.Finish();
      ASSERT_FALSE(InvalidUtf8At(streamed));
      ASSERT_EQ(streamed, *t.Decode(ids, skip));
    }
  }
}

TEST(StreamDecoder, HoldsBackACharacterUntilItsLastByte) {
  const Tokenizer t = Must(FromJson(ByteLevelJson({test::kGlmRegex})));
  StreamDecoder stream(t, true);
  EXPECT_EQ(stream.Feed(0xF0), "");
  EXPECT_EQ(stream.Feed(0x9F), "");
  EXPECT_TRUE(stream.pending());
  EXPECT_EQ(stream.Feed(0x99), "");
  EXPECT_EQ(stream.Feed(0x82), "🙂");
  EXPECT_EQ(stream.Feed(0xE5), "");
  EXPECT_EQ(stream.Feed('a'), "\uFFFDa");  // can no longer become a character
  EXPECT_EQ(stream.Feed(0xE5), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Feed(99999), "");
  EXPECT_EQ(stream.Finish(), "");
  // Maximal parts: E1 80 is one, then 41; F0 80 is two.
  EXPECT_EQ(*t.Decode(std::vector<int32_t>{0xE1, 0x80, 0x41}, true), "\uFFFDA");
  EXPECT_EQ(*t.Decode(std::vector<int32_t>{0xF0, 0x80}, true), "\uFFFD\uFFFD");
}

TEST(Tokenizer, MergesLowestRankFirstAndLeftmostOfEquals) {
  const Tokenizer t = Must(FromJson(
      ByteLevelJson({test::kGlmRegex}, {{"a", "a"}, {"b", "c"}, {"a", "b"}, {"aa", "a"}})));
  EXPECT_THAT(Ids(t, "aaa"), ElementsAre(259));        // (a a) a -> aaa
  EXPECT_THAT(Ids(t, "aaaa"), ElementsAre(256, 256));  // leftmost pairs first
  EXPECT_THAT(Ids(t, "abc"), ElementsAre('a', 257));   // b c outranks a b
  EXPECT_THAT(Ids(t, "aab"), ElementsAre(256, 'b'));
  OrderedJson strings = ByteLevelJson({test::kGlmRegex}, {{"a", "a"}});
  strings["model"]["merges"] = {"a a"};
  EXPECT_THAT(Ids(Must(FromJson(strings)), "aab"), ElementsAre(256, 'b'));
}

TEST(Tokenizer, IgnoreMergesTakesAWholePieceFromTheVocabulary) {
  OrderedJson json = ByteLevelJson({test::kGlmRegex}, {{"a", "b"}});
  json["model"]["vocab"]["abc"] = 257;
  EXPECT_THAT(Ids(Must(FromJson(json)), "abc"), ElementsAre(256, 'c'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(Ids(Must(FromJson(json)), "abc"), ElementsAre(257));
}

TEST(Tokenizer, AddedTokensMatchLeftmostLongestAndKeepTheirRules) {
  const OrderedJson json = ByteLevelJson({test::kGlmRegex}, {},
                                         {{{"content", "<a>"}, {"special", true}},
                                          {{"content", "<a><b>"}, {"special", true}},
                                          {{"content", "<think>"}, {"special", false}},
                                          {{"content", "<l>"}, {"lstrip", true}},
                                          {{"content", "<r>"}, {"rstrip", true}},
                                          {{"content", "word"}, {"single_word", true}}});
  const Tokenizer t = Must(FromJson(json));
  EXPECT_THAT(Ids(t, "<a><a><b>x"), ElementsAre(256, 257, 'x'));
  EXPECT_THAT(Ids(t, "a \t\u3000<l> b"), ElementsAre('a', 259, ' ', 'b'));
  EXPECT_THAT(Ids(t, "a <r> \u3000b"), ElementsAre('a', ' ', 260, 'b'));
  EXPECT_THAT(Ids(t, "word,word1 wordé"),
              ElementsAre(261, ',', 'w', 'o', 'r', 'd', '1', ' ', 'w', 'o', 'r', 'd', 0xC3, 0xA9));
  EXPECT_THAT(Ids(t, "<a", false), ElementsAre('<', 'a'));
  EXPECT_THAT(Ids(t, "<a>", false), ElementsAre('<', 'a', '>'));
  const std::vector<int32_t> ids{256, 'x', 258};
  EXPECT_EQ(*t.Decode(ids, true), "x<think>");
  EXPECT_EQ(*t.Decode(ids, false), "<a>x<think>");
  EXPECT_TRUE(t.IsSpecial(256));
  EXPECT_FALSE(t.IsSpecial(258));
}

TEST(Tokenizer, NfcRunsAfterRawTokensAndBeforeNormalizedOnes) {
  OrderedJson json = ByteLevelJson({test::kGlmRegex}, {},
                                   {{{"content", "e\u0301"}, {"normalized", false}},
                                    {{"content", "o\u0301"}, {"normalized", true}}});
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  const Tokenizer t = Must(FromJson(json));
  EXPECT_THAT(Ids(t, "e\u0301"), ElementsAre(256));
  EXPECT_THAT(Ids(t, "ó"), ElementsAre(257));  // the token's own content was normalised too
  EXPECT_THAT(Ids(t, "o\u0301"), ElementsAre(257));
  EXPECT_THAT(Ids(t, "u\u0301"), ElementsAre(0xC3, 0xBA));  // ú
}

TEST(Nfc, ComposesAndStaysFastOnLongRunsOfMarks) {
  EXPECT_EQ(Nfc("A\u030a \u212b q\u0307\u0323 \u1100\u1161"), "Å Å q\u0323\u0307 가");
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  const auto start = std::chrono::steady_clock::now();
  const std::string composed = Nfc(marks);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_TRUE(composed.starts_with("ạ\u0323"));
}

TEST(Tokenizer, PostProcessorTemplatePutsBosAround) {
  OrderedJson json =
      ByteLevelJson({test::kGlmRegex}, {}, {{{"content", "<s>"}, {"special", true}}});
  json["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"pair", OrderedJson::array()},
         {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}}}}};
  const Tokenizer t = Must(FromJson(json));
  EXPECT_THAT(Ids(t, "a"), ElementsAre(256, 'a'));
  EXPECT_THAT(Ids(t, ""), ElementsAre(256));
  EXPECT_THAT(Ids(t, "a", true, false), ElementsAre('a'));
}

OrderedJson SentencePieceJson() {
  OrderedJson vocab = {{"<unk>", 0}, {"<s>", 1}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = b + 2;
  for (const char* s : {"▁", "h", "i", "hi", "▁hi"}) vocab[s] = static_cast<int>(vocab.size());
  return {{"added_tokens",
           {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
            {{"id", 1}, {"content", "<s>"}, {"special", true}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"h i", "▁ hi"}}}}};
}

TEST(Tokenizer, SentencePieceLikeFilesUseByteFallback) {
  const Tokenizer t = Must(FromJson(SentencePieceJson()));
  EXPECT_THAT(Ids(t, "hi hi"), ElementsAre(262, 262));
  EXPECT_THAT(Ids(t, "hié"), ElementsAre(262, 0xC3 + 2, 0xA9 + 2));
  for (const char* text : {"hi hi", " hi", "é 🙂\n", ""})
    EXPECT_EQ(*t.Decode(Ids(t, text), true), text);
  StreamDecoder continued(t, true, /*continues=*/true);
  EXPECT_EQ(continued.Feed(262), " hi");
  OrderedJson metaspace = SentencePieceJson();
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  metaspace["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  const Tokenizer m = Must(FromJson(metaspace));
  EXPECT_THAT(Ids(m, "hi<s>hi hi"), ElementsAre(262, 1, 261, 262));
}

TEST(Tokenizer, AMegabyteWithoutACutIsFast) {
  const Tokenizer t = Must(Tokenizer::Load(test::BundledModelDir()));
  std::mt19937 random(9);
  std::string letters(1 << 20, 'a');
  for (char& c : letters) c = static_cast<char>('a' + random() % 26);
  std::string newlines;
  while (newlines.size() < (1 << 20)) newlines += "\n ";
  for (const std::string& text :
       {std::string(1 << 20, 'a'), letters, std::string(1 << 20, ' '), newlines,
        std::string(1 << 20, '!'), std::string(1 << 20, '1'), std::string(1 << 20, '<')}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = Ids(t, text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 2.0) << text.substr(0, 10);
    EXPECT_EQ(*t.Decode(ids, false), text);
  }
}

TEST(Tokenizer, ARunawayRegexIsAnErrorInBoundedTime) {
  const std::string text = std::string(200'000, 'a') + "!";
  // Exponential, exponential, cubic; and quadratic: cheap from any one place where a match may
  // start, but there are many.
  for (const char* regex :
       {R"((?:a+)+[bc])", R"((?:a|aa)+[bc])", R"(a+a+a+[bc])", R"((?=a+[bc])a)"}) {
    auto t = FromJson(ByteLevelJson({regex}));
    ASSERT_TRUE(t) << t.error().message;
    const auto start = std::chrono::steady_clock::now();
    const auto ids = t->Encode(text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 10.0) << regex;
    ASSERT_FALSE(ids) << regex;
    EXPECT_THAT(ids.error().message, HasSubstr("regex"));
  }
}

TEST(Tokenizer, RefusesTextsThatAreNotUtf8OrTooLong) {
  const Tokenizer t = Must(FromJson(ByteLevelJson({test::kGlmRegex})));
  for (const auto& [text, offset] :
       std::vector<std::pair<std::string, int>>{{"abc\xff", 3},
                                                {"a\xc0\x80", 1},
                                                {"\xed\xa0\x80", 0},
                                                {"ok\xe2\x82", 2},
                                                {"\xf4\x90\x80\x80", 0}}) {
    const auto ids = t.Encode(text);
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(ids.error().message, HasSubstr(fmt::format("at offset {}", offset)));
  }
  // 2^31 bytes claimed, none of them touched.
  const auto huge = t.Encode(std::string_view("x", size_t{1} << 31));
  ASSERT_FALSE(huge);
  EXPECT_THAT(huge.error().message, HasSubstr("2147483648 bytes"));
  EXPECT_FALSE(t.Decode(std::vector<int32_t>{-1}, false));
  EXPECT_THAT(t.Decode(std::vector<int32_t>{5000}, false).error().message,
              HasSubstr("token id 5000"));
}

TEST(Tokenizer, ManyThreadsMayEncodeAtOnce) {
  const Tokenizer t = Must(Tokenizer::Load(test::BundledModelDir()));
  const std::string text =
      "It was a dark and stormy night; 12345 價格 <|user|> \n\n the rain fell in torrents.";
  const auto expected = Ids(t, text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) EXPECT_EQ(Ids(t, text), expected);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace carpool
