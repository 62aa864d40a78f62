// POST /v1/moe/routing: {"routing": POLICY} changes the server's default for the steps to come;
// "auto" hands the choice to the calibration given at start.
#include <nlohmann/json.hpp>

#include "routing/policy_spec.h"
#include "server/endpoint.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

struct Wanted {
  std::shared_ptr<const PolicySpec> policy;  // null: automatic
  std::string text;
};

ApiResult<Wanted> ParseMoeRouting(const std::string& text, const RequestRules&) {
  auto parsed = ParseJsonObject(text);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  JsonFields f(std::get<Json>(parsed));
  f.OnlyKnown({"routing"});
  Wanted wanted;
  wanted.text = f.String("routing", {}, 1024);
  if (!f.error() && !f.Has("routing")) f.Fail("routing", "is missing; wanted a policy");
  if (!f.error() && wanted.text.find('@') != std::string::npos)
    f.Fail("routing", "files cannot be named in a request; give them with --routing at start");
  if (f.error()) return *f.error();
  if (const auto automatic = ParseAutoPolicy(wanted.text); automatic && *automatic) return wanted;
  auto policy = ParseServePolicy(wanted.text);
  if (!policy) {
    f.Fail("routing", policy.error().message);
    return *f.error();
  }
  wanted.policy = std::move(*policy);
  wanted.text = PolicyText(*wanted.policy);
  return wanted;
}

void RefuseRouting(ServerContext& context, Exchange& exchange, const Error& reason) {
  ApiError error = ToApiError(reason);
  error.param = "routing";
  Refuse(context, exchange, error);
}

void Change(ServerContext& context, std::shared_ptr<Exchange> exchange, Wanted wanted) {
  std::shared_ptr<PolicyChooser> chooser;
  if (wanted.policy == nullptr) {
    if (!context.options.make_auto) {
      return RefuseRouting(context, *exchange,
                           MakeError(ErrorCode::kInvalidArgument,
                                     "'{}' needs a calibration; start the server with "
                                     "--calibration FILE",
                                     wanted.text));
    }
    auto made = context.options.make_auto(wanted.text);
    if (!made) return RefuseRouting(context, *exchange, made.error());
    chooser = std::move(*made);
    wanted.policy = *ParsePolicy("vanilla");  // until the chooser's first step
  }
  context.loop->Post([&context, exchange = std::move(exchange), wanted = std::move(wanted),
                      chooser = std::move(chooser)](Engine& engine) mutable {
    const Status status = engine.SetPolicy(wanted.policy);
    if (status) engine.SetChooser(std::move(chooser));
    context.http->Post([&context, exchange = std::move(exchange), wanted, status] {
      if (!status) return RefuseRouting(context, *exchange, status.error());
      nlohmann::ordered_json answer;
      answer["routing"] = wanted.text;
      answer["previous"] = context.routing;
      context.policy = wanted.policy;
      context.routing = wanted.text;
      RespondJson(context, *exchange, answer.dump());
    });
  });
}

void HandleMoeRouting(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  ParseThen<Wanted>(context, std::move(exchange), &ParseMoeRouting, &Change);
}

}  // namespace

extern const Endpoint kMoeRouting;
const Endpoint kMoeRouting{"POST", "/v1/moe/routing", true, true, &HandleMoeRouting};

}  // namespace carpool
