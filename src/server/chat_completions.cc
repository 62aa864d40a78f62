// POST /v1/chat/completions
#include <charconv>
#include <random>

#include "server/endpoint.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxTools = 128;

/// Takes the added tokens ("<|user|>") in clients' texts out of the reach of the template's control
/// tokens: they are replaced before rendering and encoded as plain text after it.
class Guard {
 public:
  explicit Guard(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    // Not to be guessed by whoever writes messages.
    std::random_device random;
    mark_ = fmt::format("\uE0F1{:08x}{:08x}.", random(), random());
  }

  std::string Hide(std::string text) const {
    const auto& tokens = tokenizer_.added_tokens();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string& token = tokens[i].content;
      if (token.empty()) continue;
      const std::string hidden = mark_ + std::to_string(i) + "\uE0F2";
      for (size_t at = text.find(token); at != std::string::npos;
           at = text.find(token, at + hidden.size())) {
        text.replace(at, token.size(), hidden);
      }
    }
    return text;
  }

  ApiResult<std::vector<int32_t>> Encode(const RequestRules& rules, std::string_view text) const {
    std::vector<int32_t> ids;
    const auto add = [&](std::string_view part, bool added_tokens) -> std::optional<ApiError> {
      if (part.empty()) return std::nullopt;
      auto encoded = EncodePrompt(rules, part, "messages", added_tokens, false);
      if (auto* error = std::get_if<ApiError>(&encoded)) return *error;
      const auto& more = std::get<std::vector<int32_t>>(encoded);
      ids.insert(ids.end(), more.begin(), more.end());
      return std::nullopt;
    };
    while (true) {
      const size_t at = text.find(mark_);
      if (auto error = add(text.substr(0, at), true)) return *error;
      if (at == std::string_view::npos) return ids;
      text.remove_prefix(at + mark_.size());
      size_t number = 0;
      const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
      const auto& tokens = tokenizer_.added_tokens();
      // A template may cut a text in the middle of a mark; what is left of it is dropped.
      if (ec == std::errc() && number < tokens.size()) {
        if (auto error = add(tokens[number].content, false)) return *error;
      }
      text.remove_prefix(static_cast<size_t>(end - text.data()));
      if (text.starts_with("\uE0F2")) text.remove_prefix(std::string_view("\uE0F2").size());
    }
  }

 private:
  const Tokenizer& tokenizer_;
  std::string mark_;
};

/// The text of a message's "content": a string, or a list of text parts.
std::optional<ApiError> ReadContent(const Json& message, const std::string& path,
                                    std::string& text) {
  JsonFields f(message, path);
  const Json* content = f.Find("content");
  if (content == nullptr) return std::nullopt;
  if (content->is_string()) {
    text = content->get<std::string>();
    return std::nullopt;
  }
  if (!content->is_array()) {
    f.Fail("content", fmt::format("wanted a string or a list of parts, got {}", Shown(*content)));
    return f.error();
  }
  for (const Json& part : *content) {
    const bool is_text = part.is_object() && part.value("type", Json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      f.Fail("content", fmt::format("only text parts {{\"type\":\"text\",\"text\":...}} are "
                                    "supported, got {}",
                                    Shown(part)));
      return f.error();
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return std::nullopt;
}

std::optional<ApiError> ReadMessages(const Json& body, const Guard& guard, Json& variables) {
  JsonFields f(body);
  const Json* messages = f.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() ||
      messages->size() > kMaxMessages) {
    f.Fail("messages", fmt::format("wanted a list of 1 to {} messages", kMaxMessages));
    return f.error();
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string path = fmt::format("messages[{}].", i);
    if (!message.is_object()) {
      f.Fail("messages", fmt::format("[{}]: wanted an object, got {}", i, Shown(message)));
      return f.error();
    }
    JsonFields m(message, path);
    std::string role = m.String("role", {}, 32);
    if (role == "developer") role = "system";
    if (!m.error() && role != "system" && role != "user" && role != "assistant" && role != "tool")
      m.Fail("role",
             fmt::format("wanted system, user, assistant, developer or tool, got '{}'", role));
    if (m.error()) return m.error();
    std::string text;
    if (auto error = ReadContent(message, path, text)) return error;
    Json copy = message;
    copy["role"] = role;
    // Assistant turns come from the model's own output, tags and all.
    copy["content"] = role == "assistant" ? text : guard.Hide(std::move(text));
    out.push_back(std::move(copy));
  }
  variables["messages"] = std::move(out);
  return std::nullopt;
}

std::optional<ApiError> ReadTools(const Json& body, Json& variables, GenerationSpec& spec) {
  JsonFields f(body);
  std::string choice = "auto";
  if (const Json* given = f.Find("tool_choice"); given != nullptr) {
    choice = given->is_string() ? given->get<std::string>() : "named";
    if (choice != "auto" && choice != "none") {
      f.Fail("tool_choice", fmt::format("wanted \"auto\" or \"none\", got {}; the output cannot be "
                                        "constrained to a call",
                                        Shown(*given)));
      return f.error();
    }
  }
  f.Bool("parallel_tool_calls", true);
  const Json* tools = f.Find("tools");
  if (tools == nullptr || f.error()) return f.error();
  if (!tools->is_array() || tools->size() > kMaxTools) {
    f.Fail("tools", fmt::format("wanted a list of at most {} tools", kMaxTools));
    return f.error();
  }
  for (const Json& tool : *tools) {
    const bool good = tool.is_object() && tool.value("type", Json()) == "function" &&
                      tool.contains("function") && tool["function"].is_object() &&
                      tool["function"].value("name", Json()).is_string() &&
                      tool["function"].value("parameters", Json::object()).is_object();
    const size_t length = good ? tool["function"]["name"].get_ref<const std::string&>().size() : 0;
    if (length == 0 || length > 128) {
      f.Fail("tools", fmt::format("wanted {{\"type\":\"function\",\"function\":{{\"name\":...,"
                                  "\"parameters\":{{...}}}}}}, got {}",
                                  Shown(tool)));
      return f.error();
    }
  }
  if (choice == "none" || tools->empty()) return std::nullopt;
  variables["tools"] = *tools;
  spec.tools = std::make_shared<Json>(*tools);
  return std::nullopt;
}

/// Only what templates of known models ask for, and only plain values: a template's variables are
/// no place for surprises.
std::optional<ApiError> ReadTemplateVariables(const Json& body, Json& variables) {
  JsonFields f(body);
  const std::string effort = f.String("reasoning_effort", {}, 32);
  if (!effort.empty()) variables["reasoning_effort"] = effort;
  if (const Json* kwargs = f.Object("chat_template_kwargs"); kwargs != nullptr) {
    JsonFields k(*kwargs, "chat_template_kwargs.");
    k.OnlyKnown({"enable_thinking", "thinking", "clear_thinking", "reasoning_effort"});
    for (const char* name : {"enable_thinking", "thinking", "clear_thinking"}) {
      if (k.Has(name)) variables[name] = k.Bool(name, false);
    }
    if (k.Has("reasoning_effort"))
      variables["reasoning_effort"] = k.String("reasoning_effort", {}, 32);
    if (k.error()) return k.error();
  }
  return f.error();
}

std::optional<ApiError> ReadLogprobs(const Json& body, const RequestRules& rules,
                                     GenerationSpec& spec) {
  JsonFields f(body);
  const bool wanted = f.Bool("logprobs", false);
  const int64_t top = f.Int("top_logprobs", 0, 0, rules.max_logprobs);
  if (!f.error() && f.Has("top_logprobs") && !wanted)
    f.Fail("top_logprobs", "needs logprobs: true");
  if (wanted) spec.logprobs = static_cast<int>(top);
  return f.error();
}

ApiResult<GenerationSpec> ParseChatCompletions(const std::string& text, const RequestRules& rules) {
  if (rules.chat_template == nullptr) {
    return ApiError{
        400,
        fmt::format("this model cannot chat: {}; /v1/completions works", rules.no_chat_reason),
        {},
        "no_chat_template"};
  }
  auto parsed = ParseJsonObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const Json& body = std::get<Json>(parsed);
  GenerationSpec spec;
  spec.chat = true;
  const Guard guard(rules.loop->tokenizer());
  Json variables = {{"add_generation_prompt", true}};
  if (auto error = ReadCommonFields(body, rules, spec)) return *error;
  if (auto error = ReadLogprobs(body, rules, spec)) return *error;
  if (auto error = ReadMessages(body, guard, variables)) return *error;
  if (auto error = ReadTools(body, variables, spec)) return *error;
  if (auto error = ReadTemplateVariables(body, variables)) return *error;
  const auto rendered = rules.chat_template->Render(variables.dump());
  if (!rendered) {
    ApiError error = ToApiError(rendered.error());
    error.message = "messages: " + error.message;
    error.param = "messages";
    return error;
  }
  auto ids = guard.Encode(rules, *rendered);
  if (auto* error = std::get_if<ApiError>(&ids)) return *error;
  spec.prompts.push_back(std::move(std::get<std::vector<int32_t>>(ids)));
  const std::string& source = rules.chat_template->source();
  spec.parse_reasoning = source.find("<think>") != std::string::npos;
  spec.parse_tools = spec.tools != nullptr && source.find("<tool_call>") != std::string::npos;
  const size_t last = rendered->find_last_not_of(" \n");
  spec.starts_in_reasoning = last != std::string::npos &&
                             std::string_view(*rendered).substr(0, last + 1).ends_with("<think>");
  if (auto error = FitToContext(rules, spec)) return *error;
  return spec;
}

void HandleChatCompletions(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  ParseThen<GenerationSpec>(context, std::move(exchange), &ParseChatCompletions, &StartGeneration);
}

}  // namespace

extern const Endpoint kChatCompletions;
const Endpoint kChatCompletions{"POST", "/v1/chat/completions", true, true, &HandleChatCompletions};

}  // namespace carpool
