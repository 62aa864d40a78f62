// POST /detokenize: {"tokens": [ids]} -> {"prompt": TEXT} (and "content", the same).
#include "server/endpoint.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

ApiResult<std::string> ParseDetokenize(const std::string& text, const RequestRules& rules) {
  auto parsed = ParseJsonObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  JsonFields f(std::get<Json>(parsed));
  const Tokenizer& tokenizer = rules.loop->tokenizer();
  const auto ids = f.TokenIds("tokens", size_t{1} << 20, tokenizer.vocab_size());
  if (!f.error() && !f.Has("tokens")) f.Fail("tokens", "is missing; wanted a list of token ids");
  if (f.error()) return *f.error();
  const auto decoded = tokenizer.Decode(ids, /*skip_special=*/false);
  if (!decoded) return ToApiError(decoded.error());
  return fmt::format(R"({{"prompt":{0},"content":{0}}})", JsonString(*decoded));
}

void HandleDetokenize(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  ParseThen<std::string>(context, std::move(exchange), &ParseDetokenize, &RespondParsed);
}

}  // namespace

extern const Endpoint kDetokenize;
const Endpoint kDetokenize{"POST", "/detokenize", true, true, &HandleDetokenize};

}  // namespace carpool
