// From a request to its endpoint: path, method, key, state.
#include <algorithm>

#include "base/printable.h"
#include "server/endpoint.h"

namespace carpool {
namespace {

/// Takes the same time wherever the strings differ.
bool SameSecret(std::string_view given, std::string_view wanted) {
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = wanted.empty() ? '\0' : wanted[i % wanted.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

bool HasKey(const ServerContext& context, std::string_view authorization) {
  constexpr std::string_view kBearer = "Bearer ";
  if (!authorization.starts_with(kBearer)) return false;
  const std::string_view given = authorization.substr(kBearer.size());
  bool found = false;
  for (const std::string& key : context.options.api_keys) found |= SameSecret(given, key);
  return found;
}

bool Matches(const Endpoint& endpoint, std::string_view path) {
  if (!endpoint.path.ends_with('*')) return path == endpoint.path;
  return path.starts_with(endpoint.path.substr(0, endpoint.path.size() - 1));
}

}  // namespace

void RespondJson(ServerContext& context, Exchange& exchange, std::string body, int status) {
  if (context.metrics != nullptr) context.metrics->OnHttp(status);
  exchange.Respond(status, "application/json", std::move(body));
}

void RespondParsed(ServerContext& context, std::shared_ptr<Exchange> exchange, std::string body) {
  RespondJson(context, *exchange, std::move(body));
}

void Refuse(ServerContext& context, Exchange& exchange, const ApiError& error) {
  if (context.metrics != nullptr) context.metrics->OnHttp(error.status);
  RespondError(exchange, error);
}

void Dispatch(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Endpoint* found = nullptr;
  std::vector<std::string_view> methods;
  for (const Endpoint* endpoint : AllEndpoints()) {
    if (!Matches(*endpoint, request.path)) continue;
    methods.push_back(endpoint->method);
    if (endpoint->method == request.method) found = endpoint;
  }
  if (methods.empty()) {
    return Refuse(context, *exchange,
                  {404, fmt::format("no such path: {}", Printable(request.path)), {}, "not_found"});
  }
  if (request.method == "OPTIONS" && !context.options.http.cors_origin.empty()) {
    return exchange->Respond(
        204, "text/plain", {},
        {{"Access-Control-Allow-Methods", fmt::format("{}", fmt::join(methods, ", "))},
         {"Access-Control-Allow-Headers", "Authorization, Content-Type"}});
  }
  if (found == nullptr) {
    return Refuse(context, *exchange,
                  {405,
                   fmt::format("{} is not allowed here; wanted {}", Printable(request.method, 20),
                               fmt::join(methods, " or ")),
                   {},
                   "method_not_allowed"});
  }
  if (found->needs_key && !context.options.api_keys.empty() &&
      !HasKey(context, request.authorization)) {
    return Refuse(context, *exchange,
                  {401,
                   "wanted the header 'Authorization: Bearer KEY' with a key of this server",
                   {},
                   "invalid_api_key"});
  }
  if (found->needs_model && context.loop == nullptr) {
    return Refuse(context, *exchange,
                  {503, "the model is still loading; try again in a moment", {}, "loading"});
  }
  if (context.draining && found->method == "POST") {
    return Refuse(context, *exchange, {503, "the server is shutting down", {}, "shutting_down"});
  }
  found->handle(context, std::move(exchange));
}

void StartGeneration(ServerContext& context, std::shared_ptr<Exchange> exchange,
                     GenerationSpec spec) {
  std::make_shared<Generation>(context, std::move(exchange), std::move(spec))->Start();
}

}  // namespace carpool
