// GET /v1/moe/stats: per MoE layer, what routing did since the start (or the last reset), and the
// experts of the last step. Query: reset=1 clears the sums afterwards; heat=1 adds the last step's
// layers x experts map.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/endpoint.h"

namespace carpool {
namespace {

constexpr size_t kHottest = 8;

double Ratio(uint64_t a, uint64_t b) {
  return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
}

nlohmann::ordered_json StepsJson(const StepStats& s) {
  RoutingStats sum;
  for (const RoutingStats& layer : s.moe) {
    sum.rows += layer.rows;
    sum.assignments += layer.assignments;
    sum.distinct_experts += layer.distinct_experts;
    sum.piggybacks += layer.piggybacks;
    sum.dropped += layer.dropped;
  }
  nlohmann::ordered_json json;
  json["steps"] = s.steps;
  json["rows"] = s.rows;
  json["distinct_experts_mean"] = Ratio(sum.distinct_experts, s.steps * s.moe.size());
  json["experts_per_row_mean"] = Ratio(sum.assignments, sum.rows);
  json["piggyback_rate"] = Ratio(sum.piggybacks, sum.assignments);
  json["dropped_rate"] = Ratio(sum.dropped, sum.assignments);
  json["expert_bytes"] = s.expert_bytes;
  json["seconds"] = static_cast<double>(s.total_ns) * 1e-9;
  json["tokens_per_s"] =
      s.total_ns == 0 ? 0.0 : static_cast<double>(s.rows) * 1e9 / static_cast<double>(s.total_ns);
  return json;
}

nlohmann::ordered_json LayerJson(const Engine& engine, size_t layer) {
  const RoutingRecorder& recorder = engine.recorder();
  const auto rows = recorder.expert_rows().subspan(layer * recorder.experts(), recorder.experts());
  std::vector<size_t> order(rows.size());
  for (size_t e = 0; e < order.size(); ++e) order[e] = e;
  const size_t hottest = std::min(kHottest, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(hottest), order.end(),
      [&](size_t a, size_t b) { return rows[a] != rows[b] ? rows[a] > rows[b] : a < b; });
  nlohmann::ordered_json json;
  json["layer"] = layer;
  const auto& decode = engine.decode_stats();
  const RoutingStats stats = layer < decode.moe.size() ? decode.moe[layer] : RoutingStats();
  json["distinct_experts_mean"] = Ratio(stats.distinct_experts, decode.steps);
  json["rows_per_expert_mean"] = Ratio(stats.assignments, stats.distinct_experts);
  json["piggyback_rate"] = Ratio(stats.piggybacks, stats.assignments);
  json["hottest"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < hottest; ++i)
    json["hottest"].push_back({{"expert", order[i]}, {"rows", rows[order[i]]}});
  return json;
}

std::string Snapshot(const Engine& engine, bool heat) {
  const RoutingRecorder& recorder = engine.recorder();
  nlohmann::ordered_json json;
  json["routing"] = PolicyText(engine.router().policy());
  json["running"] = engine.num_running();
  json["waiting"] = engine.num_waiting();
  json["bytes_per_expert"] = engine.model().bytes_per_expert();
  json["decode"] = StepsJson(engine.decode_stats());
  json["mixed"] = StepsJson(engine.prefill_stats());
  json["layers"] = nlohmann::ordered_json::array();
  for (size_t layer = 0; layer < recorder.layers(); ++layer)
    json["layers"].push_back(LayerJson(engine, layer));
  if (heat) {
    json["last_step"]["rows"] = engine.last_step().rows;
    json["last_step"]["decode_rows"] = engine.last_step().decode_rows;
    json["last_step"]["layers"] = recorder.layers();
    json["last_step"]["experts"] = recorder.experts();
    json["last_step"]["distinct"] = recorder.distinct();
    json["last_step"]["own_rows"] = recorder.own_rows();
    json["last_step"]["rides"] = recorder.rides();
  }
  return json.dump();
}

bool Asks(std::string_view query, std::string_view what) {
  for (size_t at = 0; at <= query.size();) {
    const size_t end = std::min(query.find('&', at), query.size());
    if (query.substr(at, end - at) == what) return true;
    at = end + 1;
  }
  return false;
}

void HandleMoeStats(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  const bool heat = Asks(exchange->request().query, "heat=1");
  const bool reset = Asks(exchange->request().query, "reset=1");
  context.loop->Post(
      [&context, exchange = std::move(exchange), heat, reset](Engine& engine) mutable {
        auto body = std::make_shared<std::string>(Snapshot(engine, heat));
        if (reset) engine.ClearStats();
        context.http->Post([&context, exchange = std::move(exchange), body] {
          RespondJson(context, *exchange, std::move(*body));
        });
      });
}

}  // namespace

extern const Endpoint kMoeStats;
const Endpoint kMoeStats{"GET", "/v1/moe/stats", true, true, &HandleMoeStats};

}  // namespace carpool
