// GET /health: 200 when requests are served, 503 while the model loads or the server drains.
#include "server/endpoint.h"

namespace carpool {
namespace {

void HandleHealth(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  const bool loading = context.loop == nullptr;
  if (loading || context.draining) {
    return exchange->Respond(503, "application/json",
                             loading ? R"({"status":"loading"})" : R"({"status":"shutting down"})",
                             {{"Retry-After", "1"}});
  }
  RespondJson(context, *exchange, R"({"status":"ok"})");
}

}  // namespace

extern const Endpoint kHealth;
const Endpoint kHealth{"GET", "/health", false, false, &HandleHealth};

}  // namespace carpool
