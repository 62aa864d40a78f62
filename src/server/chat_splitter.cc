#include "server/chat_splitter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace carpool {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kCall = "<tool_call>", kEndCall = "</tool_call>";
constexpr std::string_view kKey = "<arg_key>", kEndKey = "</arg_key>";
constexpr std::string_view kValue = "<arg_value>", kEndValue = "</arg_value>";

std::string_view Trim(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

/// Length of the longest end of `text` that begins `tag`.
size_t OpenEnd(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

/// The text between `open` and `close` from `at` on; moves `at` behind it. False: not there.
bool Between(std::string_view text, std::string_view open, std::string_view close, size_t& at,
             std::string_view& found) {
  const size_t begin = text.find(open, at);
  if (begin == std::string_view::npos) return false;
  const size_t end = text.find(close, begin + open.size());
  if (end == std::string_view::npos) return false;
  found = text.substr(begin + open.size(), end - begin - open.size());
  at = end + close.size();
  return true;
}

bool IsString(const nlohmann::json* tools, std::string_view function, const std::string& key) {
  if (tools == nullptr) return false;
  for (const auto& tool : *tools) {
    const auto& f = tool.value("function", nlohmann::json::object());
    if (f.value("name", "") != function) continue;
    const auto pointer = nlohmann::json::json_pointer("/parameters/properties") / key / "type";
    return f.contains(pointer) && f[pointer] == "string";
  }
  return false;
}

}  // namespace

ChatSplitter::ChatSplitter(Options options)
    : options_(std::move(options)), state_(State::kContent) {
  if (options_.reasoning) state_ = options_.starts_in_reasoning ? State::kReasoning : State::kStart;
}

ToolCall ChatSplitter::ParseCall(std::string_view body) const {
  ToolCall call;
  call.name = Trim(body.substr(0, std::min(body.find(kKey), body.size())));
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
  size_t at = 0;
  std::string_view key, value;
  while (Between(body, kKey, kEndKey, at, key) && Between(body, kValue, kEndValue, at, value)) {
    const std::string name(Trim(key));
    // Strings are written raw, everything else as JSON.
    nlohmann::ordered_json parsed = nlohmann::ordered_json::value_t::discarded;
    if (!IsString(options_.definitions.get(), call.name, name))
      parsed = nlohmann::ordered_json::parse(value, nullptr, /*allow_exceptions=*/false);
    arguments[name] = parsed.is_discarded() ? nlohmann::ordered_json(std::string(value)) : parsed;
  }
  call.arguments = arguments.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return call;
}

/// One state change; false when more text is needed.
bool ChatSplitter::Advance(ChatPieces& out) {
  const auto give = [this](std::string& to, size_t n) {
    to += held_.substr(0, n);
    held_.erase(0, n);
  };
  switch (state_) {
    case State::kStart: {
      const size_t first = held_.find_first_not_of(" \t\r\n");
      if (first == std::string::npos) return false;
      const std::string_view rest = std::string_view(held_).substr(first);
      if (rest.size() < kThink.size() && kThink.starts_with(rest)) return false;
      const bool thinks = rest.starts_with(kThink);
      if (thinks) held_.erase(0, first + kThink.size());
      state_ = thinks ? State::kReasoning : State::kContent;
      return true;
    }
    case State::kReasoning: {
      const size_t end = held_.find(kEndThink);
      if (end == std::string::npos) {
        give(out.reasoning, held_.size() - OpenEnd(held_, kEndThink));
        return false;
      }
      give(out.reasoning, end);
      held_.erase(0, kEndThink.size());
      state_ = State::kContent;
      return true;
    }
    case State::kContent: {
      if (!options_.tools) {
        give(out.content, held_.size());
        return false;
      }
      const size_t begin = held_.find(kCall);
      if (begin == std::string::npos) {
        give(out.content, held_.size() - OpenEnd(held_, kCall));
        return false;
      }
      give(out.content, begin);
      held_.erase(0, kCall.size());
      state_ = State::kCall;
      return true;
    }
    case State::kCall: {
      const size_t end = held_.find(kEndCall);
      if (end == std::string::npos) return false;
      out.calls.push_back(ParseCall(std::string_view(held_).substr(0, end)));
      any_call_ = true;
      held_.erase(0, end + kEndCall.size());
      state_ = State::kContent;
      return true;
    }
  }
  return false;
}

ChatPieces ChatSplitter::Feed(std::string_view text) {
  held_ += text;
  ChatPieces out;
  while (Advance(out)) {
  }
  // The line breaks that models put between calls are no content.
  if (any_call_ && Trim(out.content).empty()) out.content.clear();
  return out;
}

ChatPieces ChatSplitter::Finish() {
  ChatPieces out;
  if (state_ == State::kReasoning) {
    out.reasoning = std::move(held_);
  } else {
    if (state_ == State::kCall) out.content = kCall;
    out.content += held_;
    if (any_call_ && Trim(out.content).empty()) out.content.clear();
  }
  held_.clear();
  return out;
}

}  // namespace carpool
