// POST /tokenize: {"prompt": TEXT} (or "content") -> {"tokens", "count", "max_model_len"}.
#include "server/endpoint.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

ApiResult<std::string> ParseTokenize(const std::string& text, const RequestRules& rules) {
  auto parsed = ParseJsonObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const Json& body = std::get<Json>(parsed);
  JsonFields f(body);
  const std::string_view field = f.Has("content") ? "content" : "prompt";
  const std::string prompt = f.String(field, {}, SIZE_MAX);
  const bool special = f.Bool("add_special_tokens", true);
  const bool pieces = f.Bool("return_token_strs", false);
  if (!f.error() && !f.Has(field)) f.Fail("prompt", "is missing; wanted a string");
  if (f.error()) return *f.error();
  auto encoded = EncodePrompt(rules, prompt, field, true, special);
  if (auto* error = std::get_if<ApiError>(&encoded)) return *error;
  const auto& ids = std::get<std::vector<int32_t>>(encoded);
  nlohmann::ordered_json answer;
  answer["count"] = ids.size();
  answer["max_model_len"] = rules.loop->context();
  answer["tokens"] = ids;
  if (pieces) {
    answer["token_strs"] = Json::array();
    for (int32_t id : ids) answer["token_strs"].push_back(TokenText(rules.loop->tokenizer(), id));
  }
  return answer.dump();
}

void HandleTokenize(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  ParseThen<std::string>(context, std::move(exchange), &ParseTokenize, &RespondParsed);
}

}  // namespace

extern const Endpoint kTokenize;
const Endpoint kTokenize{"POST", "/tokenize", true, true, &HandleTokenize};

}  // namespace carpool
