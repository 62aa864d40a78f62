// The answers of /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "server/chat_splitter.h"
#include "server/response_format.h"

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

class ChatFormat final : public ResponseFormat {
 public:
  ChatFormat(const EngineLoop& loop, const GenerationSpec& spec, uint64_t id)
      : loop_(loop),
        spec_(spec),
        id_(id),
        chunk_head_(DocumentHead("chatcmpl", id, "chat.completion.chunk", spec.model)) {
    for (size_t i = 0; i < spec.prompts.size() * spec.n; ++i) {
      splitters_.emplace_back(ChatSplitter::Options{spec.parse_reasoning, spec.parse_tools,
                                                    spec.starts_in_reasoning, spec.tools});
    }
    calls_.resize(splitters_.size());
    started_.resize(splitters_.size());
  }

  void AppendChunks(Choice& choice, std::string& out) override {
    const size_t i = choice.index();
    const std::string text = choice.TakeText();
    if (text.empty() && !choice.finished()) return;
    if (!started_[i]) {
      started_[i] = true;
      Chunk(choice, R"({"role":"assistant","content":""})", "null", false, out);
    }
    std::string logprobs = "null";
    if (spec_.logprobs >= 0) logprobs = Logprobs(choice.TakeRecords());
    Deltas(choice, splitters_[i].Feed(text), logprobs, out);
    if (!choice.finished()) return;
    Deltas(choice, splitters_[i].Finish(), logprobs, out);
    Chunk(choice, "{}", logprobs, true, out);
  }

  std::string Body(std::vector<std::unique_ptr<Choice>>& choices,
                   const std::string& usage) override {
    std::string out =
        DocumentHead("chatcmpl", id_, "chat.completion", spec_.model) + ",\"choices\":[";
    for (auto& choice : choices) {
      if (choice != choices.front()) out += ',';
      ChatSplitter& splitter = splitters_[choice->index()];
      ChatPieces all = splitter.Feed(choice->TakeText());
      ChatPieces rest = splitter.Finish();
      all.content += rest.content;
      all.reasoning += rest.reasoning;
      out += fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":",
                         choice->index());
      out += all.content.empty() && !all.calls.empty() ? "null" : JsonString(all.content);
      if (spec_.parse_reasoning) {
        out += ",\"reasoning_content\":";
        out += all.reasoning.empty() ? "null" : JsonString(all.reasoning);
      }
      if (!all.calls.empty()) out += ",\"tool_calls\":" + Calls(*choice, all.calls, false);
      out += "},\"logprobs\":";
      out += spec_.logprobs < 0 ? "null" : Logprobs(choice->TakeRecords());
      out += ",\"finish_reason\":" + JsonString(FinishReason(*choice));
      AppendExperts(*choice, out);
      out += '}';
    }
    return out + "],\"usage\":" + usage + "}";
  }

  std::string UsageChunk(const std::string& usage) override {
    return "data: " + chunk_head_ + ",\"choices\":[],\"usage\":" + usage + "}\n\n";
  }

 private:
  std::string FinishReason(const Choice& choice) const {
    const bool called = calls_[choice.index()] > 0 && choice.finish_reason() == "stop";
    return called ? "tool_calls" : choice.finish_reason();
  }

  /// One chunk per kind of piece; the first one carries the log-probabilities.
  void Deltas(Choice& choice, const ChatPieces& pieces, std::string& logprobs, std::string& out) {
    const auto add = [&](const std::string& delta) {
      Chunk(choice, delta, logprobs, false, out);
      logprobs = "null";
    };
    if (!pieces.reasoning.empty())
      add("{\"reasoning_content\":" + JsonString(pieces.reasoning) + "}");
    if (!pieces.content.empty()) add("{\"content\":" + JsonString(pieces.content) + "}");
    if (!pieces.calls.empty()) add("{\"tool_calls\":" + Calls(choice, pieces.calls, true) + "}");
    // Tokens whose text is held back still have their log-probabilities.
    if (logprobs != "null" && logprobs != R"({"content":[]})") add("{}");
  }

  void Chunk(Choice& choice, std::string_view delta, std::string_view logprobs, bool last,
             std::string& out) {
    out += "data: ";
    out += chunk_head_;
    out += fmt::format(",\"choices\":[{{\"index\":{},\"delta\":{},\"logprobs\":{}", choice.index(),
                       delta, logprobs);
    out += ",\"finish_reason\":";
    out += last ? JsonString(FinishReason(choice)) : "null";
    if (last) AppendExperts(choice, out);
    out += "}]}\n\n";
  }

  void AppendExperts(const Choice& choice, std::string& out) {
    if (!spec_.return_experts || choice.report() == nullptr) return;
    out += ",\"routed_experts\":";
    out += RoutedExperts(*choice.report(), loop_.model().config().NumMoeLayers());
  }

  std::string Calls(const Choice& choice, const std::vector<ToolCall>& calls, bool indexed) {
    OrderedJson list = OrderedJson::array();
    for (const ToolCall& call : calls) {
      const size_t number = calls_[choice.index()]++;
      OrderedJson json;
      if (indexed) json["index"] = number;
      json["id"] = fmt::format("call_{:x}_{}_{}", id_, choice.index(), number);
      json["type"] = "function";
      json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
      list.push_back(std::move(json));
    }
    return list.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

  OrderedJson TokenJson(const TokenLogprob& t) {
    const Tokenizer& tokenizer = loop_.tokenizer();
    OrderedJson bytes = OrderedJson::array();
    for (const char c : tokenizer.TokenBytes(t.token)) bytes.push_back(static_cast<uint8_t>(c));
    return {{"token", TokenText(tokenizer, t.token)},
            {"logprob", t.logprob},
            {"bytes", std::move(bytes)}};
  }

  std::string Logprobs(const std::vector<TokenRecord>& records) {
    OrderedJson content = OrderedJson::array();
    for (const TokenRecord& r : records) {
      OrderedJson token = TokenJson(r.logprobs[0]);
      token["top_logprobs"] = OrderedJson::array();
      for (size_t i = 1; i < r.logprobs.size(); ++i)
        token["top_logprobs"].push_back(TokenJson(r.logprobs[i]));
      content.push_back(std::move(token));
    }
    OrderedJson json;
    json["content"] = std::move(content);
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

  const EngineLoop& loop_;
  const GenerationSpec& spec_;
  uint64_t id_;
  std::string chunk_head_;
  std::vector<ChatSplitter> splitters_;
  std::vector<size_t> calls_;  // tool calls so far, per choice
  std::vector<uint8_t> started_;
};

}  // namespace

std::unique_ptr<ResponseFormat> MakeChatFormat(const EngineLoop& loop, const GenerationSpec& spec,
                                               uint64_t id) {
  return std::make_unique<ChatFormat>(loop, spec, id);
}

}  // namespace carpool
