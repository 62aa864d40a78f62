// Bad tokenizer.json files: each is one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tokenizer/test_tokenizers.h"

namespace carpool {
namespace {

using test::ByteLevelJson;
using test::OrderedJson;
using ::testing::HasSubstr;

struct BadFile {
  const char* name;
  std::function<void(OrderedJson&)> breaks;
  const char* message;
};

const BadFile kBadFiles[] = {
    {"merge without product",
     [](auto& j) {
       j["model"]["merges"].push_back({"a", "b"});
     },
     "makes \"ab\", which is not in the vocabulary"},
    {"merge of itself",
     [](auto& j) {
       j["model"]["merges"].push_back({"", "a"});
     },
     "merge 1 has an empty side"},
    {"merge of the unknown",
     [](auto& j) {
       j["model"]["merges"].push_back({"zz", "a"});
     },
     "merge 1 names \"zz\""},
    {"merge of three", [](auto& j) { j["model"]["merges"].push_back("a b c"); },
     "merge 1 is \"a b c\""},
    {"merge of numbers",
     [](auto& j) {
       j["model"]["merges"].push_back({1, 2});
     },
     "merge 1 is not a pair"},
    {"no merges", [](auto& j) { j["model"].erase("merges"); }, "model.merges: wanted a list"},
    {"same id twice", [](auto& j) { j["model"]["vocab"]["new"] = 7; }, "have the same id 7"},
    {"negative id", [](auto& j) { j["model"]["vocab"]["new"] = -1; }, "is -1; ids go from 0"},
    {"huge id", [](auto& j) { j["model"]["vocab"]["new"] = int64_t{1} << 31; },
     "is 2147483648; ids go from 0"},
    {"fractional id", [](auto& j) { j["model"]["vocab"]["new"] = 3.5; }, "is not an integer"},
    {"id past 64 bits", [](auto& j) { j["model"]["vocab"]["new"] = UINT64_MAX; },
     "is not an integer in range"},
    {"long token", [](auto& j) { j["model"]["vocab"][std::string(70'000, 'x')] = 900; },
     "has 70000 bytes"},
    {"empty vocab", [](auto& j) { j["model"]["vocab"] = OrderedJson::object(); },
     "model.vocab is empty"},
    {"vocab list", [](auto& j) { j["model"]["vocab"] = OrderedJson::array(); },
     "model.vocab: wanted an object"},
    {"missing byte", [](auto& j) { j["model"]["vocab"].erase("Q"); }, "no token for byte 0x51"},
    {"no model", [](auto& j) { j.erase("model"); }, "wanted an object \"model\""},
    {"model type", [](auto& j) { j["model"]["type"] = "Unigram"; },
     "model type \"Unigram\"; Carpool reads \"BPE\""},
    {"dropout", [](auto& j) { j["model"]["dropout"] = 0.1; }, "model.dropout 0.1"},
    {"prefix", [](auto& j) { j["model"]["continuing_subword_prefix"] = "##"; },
     "continuing_subword_prefix \"##\""},
    {"suffix", [](auto& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
    {"unk", [](auto& j) { j["model"]["unk_token"] = "<unk>"; }, "unk_token \"<unk>\" is not in"},
    {"flag", [](auto& j) { j["model"]["byte_fallback"] = "yes"; },
     "model.byte_fallback: wanted true or false"},
    {"normalizer",
     [](auto& j) {
       j["normalizer"] = {{"type", "BertNormalizer"}};
     },
     "normalizer \"BertNormalizer\" is not supported; known:"},
    {"normalizer text", [](auto& j) { j["normalizer"] = "NFC"; }, "normalizer: wanted an object"},
    {"pre_tokenizer",
     [](auto& j) {
       j["pre_tokenizer"] = {{"type", "Whitespace"}};
     },
     "pre_tokenizer \"Whitespace\" is not supported"},
    {"behavior", [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
     "behavior \"Removed\" is not supported"},
    {"post_processor",
     [](auto& j) {
       j["post_processor"] = {{"type", "BertProcessing"}};
     },
     "post_processor \"BertProcessing\""},
    {"decoder",
     [](auto& j) {
       j["decoder"] = {{"type", "WordPiece"}};
     },
     "decoder \"WordPiece\" is not supported"},
    {"no decoder", [](auto& j) { j["decoder"] = nullptr; }, "pre_tokenizer and decoder do not fit"},
    {"bad regex",
     [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
     "does not compile"},
    {"empty match",
     [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a*"; },
     "can match an empty string"},
    {"other meaning",
     [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\h+"; },
     "uses \\h"},
    {"verb",
     [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(*NO_JIT)a"; },
     "a (* verb"},
    {"nested set",
     [](auto& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a[bc]]"; },
     "a set inside a set"},
    {"huge regex",
     [](auto& j) {
       j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = std::string(100'000, 'a');
     },
     "has 100000 bytes"},
    {"deep regex",
     [](auto& j) {
       j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
           std::string(1000, '(') + "a" + std::string(1000, ')');
     },
     "does not compile"},
    {"added id",
     [](auto& j) {
       j["added_tokens"].push_back({{"id", 5}, {"content", "<x>"}});
     },
     "have the same id 5"},
    {"added twice",
     [](auto& j) {
       j["added_tokens"] = {{{"id", 300}, {"content", "<x>"}}, {{"id", 300}, {"content", "<x>"}}};
     },
     "listed twice"},
    {"added two ids",
     [](auto& j) {
       j["added_tokens"] = {{{"id", 300}, {"content", "a"}}};
     },
     "its text already has id"},
    {"added negative",
     [](auto& j) {
       j["added_tokens"] = {{{"id", -300}, {"content", "<x>"}}};
     },
     "is -300"},
    {"added empty",
     [](auto& j) {
       j["added_tokens"] = {{{"id", 300}, {"content", ""}}};
     },
     "has 0 bytes"},
    {"added nameless",
     [](auto& j) {
       j["added_tokens"] = {{{"id", 300}}};
     },
     "\"id\" and \"content\""},
    {"template id",
     [](auto& j) {
       j["post_processor"] = {
           {"type", "TemplateProcessing"},
           {"single", {{{"SpecialToken", {{"id", "s"}}}}, {{"Sequence", {{"id", "A"}}}}}},
           {"special_tokens", {{"s", {{"ids", {7000}}}}}}};
     },
     "writes id 7000"},
};

TEST(TokenizerJson, BadFilesAreOneClearLine) {
  for (const BadFile& bad : kBadFiles) {
    OrderedJson json = ByteLevelJson({test::kGlmRegex}, {{"a", "a"}});
    bad.breaks(json);
    const auto t = test::FromJson(json);
    ASSERT_FALSE(t) << bad.name;
    EXPECT_THAT(t.error().message, HasSubstr(bad.message)) << bad.name;
    EXPECT_TRUE(t.error().message.starts_with("t.json: ")) << t.error().message;
    EXPECT_EQ(t.error().message.find('\n'), std::string::npos) << bad.name;
    EXPECT_LT(t.error().message.size(), 400u) << bad.name;
  }
}

TEST(TokenizerJson, NotJsonOrNotThere) {
  for (const char* text : {"", "{", "[]", "7", "{\"model\": 3}", "\xff\xfe"}) {
    EXPECT_FALSE(Tokenizer::LoadFromJson(text, "t.json")) << text;
  }
  const std::string deep(100'000, '[');
  EXPECT_FALSE(Tokenizer::LoadFromJson(deep, "t.json"));
  const auto missing = Tokenizer::Load("/no/such/folder");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("/no/such/folder/tokenizer.json"));
}

TEST(TokenizerJson, ATokenTwiceInTheVocabularyIsSeen) {
  std::string text = ByteLevelJson({test::kGlmRegex}).dump();
  const std::string a = "\"A\":65";
  ASSERT_NE(text.find(a), std::string::npos);
  text.replace(text.find(a), a.size(), a + ",\"A\":300");
  const auto t = Tokenizer::LoadFromJson(text, "t.json");
  ASSERT_FALSE(t);
  EXPECT_THAT(t.error().message, HasSubstr("token \"A\" is in the vocabulary twice"));
}

TEST(TokenizerConfig, ReadsNamesAndTemplatesAndRefusesNonsense) {
  const std::string dir =
      ::testing::TempDir() + "/tokenizer_config_test" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  const auto load = [&dir](const std::string& text) {
    std::ofstream(dir + "/tokenizer_config.json") << text;
    return LoadTokenizerConfig(dir);
  };
  const auto good = load(R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":null,
                             "chat_template":[{"name":"default","template":"x"},{"name":"tool_use","template":"y"}]})");
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->special_tokens.size(), 2u);
  EXPECT_EQ(good->special_tokens[0].second, "<s>");
  EXPECT_EQ(good->chat_templates[1].second, "y");
  for (const char* bad : {"[]", "{", R"({"eos_token":3})", R"({"chat_template":3})",
                          R"({"chat_template":[{"name":1}]})"}) {
    const auto config = load(bad);
    ASSERT_FALSE(config) << bad;
    EXPECT_EQ(config.error().code, ErrorCode::kCorrupt);
  }
  std::filesystem::remove_all(dir);
  EXPECT_TRUE(LoadTokenizerConfig(dir));
}

TEST(TokenizerJson, EmptyFileIsRefused) {
  const auto t = Tokenizer::LoadFromJson({}, "t.json");
  ASSERT_FALSE(t);
  EXPECT_THAT(t.error().message, HasSubstr("t.json: not JSON: it is empty"));
}

}  // namespace
}  // namespace carpool
