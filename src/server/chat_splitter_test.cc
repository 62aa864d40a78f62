#include "server/chat_splitter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace carpool {
namespace {

ChatPieces Stream(ChatSplitter::Options options, std::string_view text, size_t piece) {
  ChatSplitter splitter(std::move(options));
  ChatPieces all;
  const auto add = [&](ChatPieces p) {
    all.content += p.content;
    all.reasoning += p.reasoning;
    for (auto& call : p.calls) all.calls.push_back(std::move(call));
  };
  for (size_t i = 0; i < text.size(); i += piece) add(splitter.Feed(text.substr(i, piece)));
  add(splitter.Finish());
  return all;
}

constexpr std::string_view kText =
    "<think>Let me <b>see</b>.</think>I look it up.\n"
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>123</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n"
    "<tool_call>now</tool_call>";

TEST(ChatSplitter, ReasoningContentAndCallsWhereverTheTextIsCut) {
  auto tools = std::make_shared<nlohmann::json>(nlohmann::json::parse(
      R"([{"function":{"name":"weather","parameters":{"properties":{"city":{"type":"string"}}}}}])"));
  for (size_t piece = 1; piece <= kText.size(); ++piece) {
    const ChatPieces p = Stream({true, true, false, tools}, kText, piece);
    EXPECT_EQ(p.reasoning, "Let me <b>see</b>.") << piece;
    EXPECT_EQ(p.content.substr(0, 13), "I look it up.") << piece;
    ASSERT_EQ(p.calls.size(), 2u) << piece;
    EXPECT_EQ(p.calls[0].name, "weather");
    EXPECT_EQ(p.calls[0].arguments, R"({"city":"123","days":[1,2]})");
    EXPECT_EQ(p.calls[1].name, "now");
    EXPECT_EQ(p.calls[1].arguments, "{}");
  }
}

TEST(ChatSplitter, StartsInsideReasoningWhenThePromptDid) {
  const ChatPieces p = Stream({true, false, true, nullptr}, "deep</think>thought", 1);
  EXPECT_EQ(p.reasoning, "deep");
  EXPECT_EQ(p.content, "thought");
}

TEST(ChatSplitter, OffMeansEverythingIsContent) { EXPECT_EQ(Stream({}, kText, 3).content, kText); }

TEST(ChatSplitter, AnUnfinishedCallIsText) {
  const ChatPieces p = Stream({false, true, false, nullptr}, "a <tool_call>b<arg_key>", 2);
  EXPECT_TRUE(p.calls.empty());
  EXPECT_EQ(p.content, "a <tool_call>b<arg_key>");
}

TEST(ChatSplitter, TagsInTheMiddleOfReasoningFreeTextStay) {
  EXPECT_EQ(Stream({true, false, false, nullptr}, "1 < 2 <think> no", 1).content,
            "1 < 2 <think> no");
}

}  // namespace
}  // namespace carpool
