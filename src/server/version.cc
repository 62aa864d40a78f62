// GET /version
#include "server/endpoint.h"

namespace carpool {
namespace {

void HandleVersion(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  RespondJson(context, *exchange, fmt::format(R"({{"version":"{}"}})", CARPOOL_VERSION));
}

}  // namespace

extern const Endpoint kVersion;
const Endpoint kVersion{"GET", "/version", false, false, &HandleVersion};

}  // namespace carpool
