// GET /metrics: Prometheus text.
#include <ctime>

#include "server/endpoint.h"

namespace carpool {
namespace {

double ThreadCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void HandleMetrics(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  const ServerGauges server{context.http->open_connections(), context.active(), ThreadCpuSeconds()};
  context.loop->Post([&context, exchange = std::move(exchange), server](Engine& engine) mutable {
    const EngineGauges gauges = ReadGauges(engine);
    context.worker.Post([&context, exchange = std::move(exchange), server, gauges]() mutable {
      auto text = std::make_shared<std::string>(context.metrics->Serialize(gauges, server));
      context.http->Post([exchange = std::move(exchange), text] {
        exchange->Respond(200, "text/plain; version=0.0.4; charset=utf-8", std::move(*text));
      });
    });
  });
}

}  // namespace

extern const Endpoint kMetricsEndpoint;
const Endpoint kMetricsEndpoint{"GET", "/metrics", true, true, &HandleMetrics};

}  // namespace carpool
