// POST /v1/completions
#include "server/endpoint.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

/// A string, a list of strings, a list of token ids, or a list of such lists.
std::optional<ApiError> ReadPrompts(const Json& body, const RequestRules& rules,
                                    GenerationSpec& spec) {
  JsonFields f(body);
  const Json* prompt = f.Find("prompt");
  const auto fail = [&](std::string message) {
    f.Fail("prompt", std::move(message));
    return f.error();
  };
  if (prompt == nullptr) return fail("is missing; wanted a string or token ids");
  const size_t vocab = rules.loop->model().config().vocab_size;
  const bool special = f.Bool("add_special_tokens", true);
  if (f.error()) return f.error();

  std::vector<const Json*> items;
  const bool one_list_of_ids =
      prompt->is_array() && !prompt->empty() && prompt->front().is_number();
  if (prompt->is_string() || one_list_of_ids) {
    items.push_back(prompt);
  } else if (prompt->is_array()) {
    if (prompt->empty() || prompt->size() > rules.max_prompts) {
      return fail(fmt::format("wanted 1 to {} prompts, got {}", rules.max_prompts, prompt->size()));
    }
    for (const Json& item : *prompt) items.push_back(&item);
  } else {
    return fail(fmt::format("wanted a string, strings or token ids, got {}", Shown(*prompt)));
  }
  for (const Json* item : items) {
    if (item->is_string()) {
      auto ids = EncodePrompt(rules, item->get_ref<const std::string&>(), "prompt", true, special);
      if (auto* error = std::get_if<ApiError>(&ids)) return *error;
      spec.prompts.push_back(std::move(std::get<std::vector<int32_t>>(ids)));
    } else {
      Json holder;
      holder["prompt"] = *item;
      JsonFields one(holder);
      spec.prompts.push_back(one.TokenIds("prompt", rules.loop->context(), vocab));
      if (one.error()) return one.error();
    }
    if (!spec.echo) continue;
    // What the tokens say, so that text and token offsets agree.
    auto text = rules.loop->tokenizer().Decode(spec.prompts.back(), /*skip_special=*/false);
    if (!text) return ToApiError(text.error());
    spec.prompt_texts.push_back(std::move(*text));
  }
  return std::nullopt;
}

ApiResult<GenerationSpec> ParseCompletions(const std::string& text, const RequestRules& rules) {
  auto parsed = ParseJsonObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const Json& body = std::get<Json>(parsed);
  GenerationSpec spec;
  JsonFields f(body);
  spec.echo = f.Bool("echo", false);
  spec.logprobs = static_cast<int>(f.Int("logprobs", -1, 0, rules.max_logprobs));
  if (!f.String("suffix", {}, 1024).empty()) f.Fail("suffix", "is not supported");
  if (f.error()) return *f.error();
  spec.base.prompt_logits = spec.echo && spec.logprobs >= 0;
  if (auto error = ReadCommonFields(body, rules, spec)) return *error;
  const bool says_max = f.Has("max_tokens") || f.Has("max_completion_tokens");
  if (!says_max) spec.base.max_tokens = 16;  // OpenAI's default for this endpoint
  if (auto error = ReadPrompts(body, rules, spec)) return *error;
  if (auto error = FitToContext(rules, spec)) return *error;
  return spec;
}

void HandleCompletions(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  ParseThen<GenerationSpec>(context, std::move(exchange), &ParseCompletions, &StartGeneration);
}

}  // namespace

extern const Endpoint kCompletions;
const Endpoint kCompletions{"POST", "/v1/completions", true, true, &HandleCompletions};

}  // namespace carpool
