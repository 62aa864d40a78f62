// GET /v1/models and /v1/models/NAME: the one model served, with its limits and routing.
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "server/endpoint.h"

namespace carpool {
namespace {

nlohmann::ordered_json ModelJson(const ServerContext& context) {
  const ModelConfig& config = context.loop->model().config();
  nlohmann::ordered_json model;
  model["id"] = context.model_name;
  model["object"] = "model";
  model["created"] = 0;
  model["owned_by"] = "carpool";
  model["max_model_len"] = context.loop->context();
  model["routing"] = context.routing;
  model["vocab_size"] = context.loop->tokenizer().vocab_size();
  model["moe"] = {{"layers", config.NumMoeLayers()},
                  {"experts", config.gate.num_experts},
                  {"top_k", config.gate.top_k},
                  {"bytes_per_expert", context.loop->model().bytes_per_expert()}};
  return model;
}

void HandleList(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  nlohmann::ordered_json list;
  list["object"] = "list";
  list["data"] = nlohmann::ordered_json::array({ModelJson(context)});
  RespondJson(context, *exchange, list.dump());
}

void HandleOne(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  const std::string name = exchange->request().path.substr(std::string_view("/v1/models/").size());
  if (name != context.model_name) {
    return Refuse(context, *exchange,
                  {404,
                   fmt::format("model '{}' is not served here; wanted '{}'", Printable(name),
                               context.model_name),
                   "model", "model_not_found"});
  }
  RespondJson(context, *exchange, ModelJson(context).dump());
}

}  // namespace

extern const Endpoint kModels, kModel;
const Endpoint kModels{"GET", "/v1/models", true, true, &HandleList};
const Endpoint kModel{"GET", "/v1/models/*", true, true, &HandleOne};

}  // namespace carpool
