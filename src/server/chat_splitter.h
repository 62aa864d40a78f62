// ChatSplitter: a chat model's raw text, as it streams, into content, reasoning and tool calls, in
// the form GLM models write them:
//   <think>reasoning</think>content
//   <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace carpool {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

struct ChatPieces {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> calls;
};

class ChatSplitter {
 public:
  struct Options {
    bool reasoning = false;
    bool tools = false;
    bool starts_in_reasoning = false;
    /// The request's "tools" (a JSON list), whose schemas say which arguments are strings; or null.
    std::shared_ptr<const nlohmann::json> definitions;
  };
  explicit ChatSplitter(Options options);

  /// What `text` completes; a piece of a tag that may go on is held back.
  ChatPieces Feed(std::string_view text);
  /// What is left at the end; an unfinished tool call is given out as the text it is.
  ChatPieces Finish();

 private:
  enum class State { kStart, kReasoning, kContent, kCall };
  bool Advance(ChatPieces& out);
  ToolCall ParseCall(std::string_view body) const;

  Options options_;
  State state_;
  std::string held_;
  bool any_call_ = false;
};

}  // namespace carpool
