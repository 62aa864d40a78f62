// POST /v1/moe/routing: {"routing": POLICY} changes the server's default for the steps to come.
#include <nlohmann/json.hpp>

#include "server/endpoint.h"

namespace carpool {
namespace {

using nlohmann::json;
using Policy = std::shared_ptr<const PolicySpec>;

ApiResult<Policy> Parse(const std::string& text, const RequestRules&) {
  auto parsed = ParseJsonObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  JsonFields f(std::get<json>(parsed));
  f.OnlyKnown({"routing"});
  const std::string routing = f.String("routing", {}, 1024);
  if (!f.error() && !f.Has("routing")) f.Fail("routing", "is missing; wanted a policy");
  if (!f.error() && routing.find('@') != std::string::npos)
    f.Fail("routing", "files cannot be named in a request; give them with --routing at start");
  if (f.error()) return *f.error();
  auto policy = ParseServePolicy(routing);
  if (!policy) {
    f.Fail("routing", policy.error().message);
    return *f.error();
  }
  return std::move(*policy);
}

void Change(ServerContext& context, std::shared_ptr<Exchange> exchange, Policy policy) {
  context.loop->Post([&context, exchange = std::move(exchange), policy](Engine& engine) mutable {
    const std::string previous = PolicyText(engine.router().policy());
    const Status status = engine.SetPolicy(policy);
    context.http->Post([&context, exchange = std::move(exchange), policy, previous, status] {
      if (!status) {
        ApiError error = ToApiError(status.error());
        error.param = "routing";
        return Refuse(context, *exchange, error);
      }
      context.policy = policy;
      nlohmann::ordered_json answer;
      answer["routing"] = PolicyText(*policy);
      answer["previous"] = previous;
      RespondJson(context, *exchange, answer.dump());
    });
  });
}

void Handle(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  ParseThen<Policy>(context, std::move(exchange), &Parse, &Change);
}

}  // namespace

extern const Endpoint kMoeRouting;
const Endpoint kMoeRouting{"POST", "/v1/moe/routing", true, true, &Handle};

}  // namespace carpool
