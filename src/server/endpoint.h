// Endpoint: one path of the server. One file each, listed in all_endpoints.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "server/api_error.h"
#include "server/exchange.h"
#include "server/server_context.h"

namespace carpool {

struct Endpoint {
  std::string_view method;
  std::string_view path;    // ending in '*': every path that starts so
  bool needs_key = true;    // when the server asks for one
  bool needs_model = true;  // 503 while the model loads
  void (*handle)(ServerContext& context, std::shared_ptr<Exchange> exchange);
};

/// THE LIST (all_endpoints.cc).
std::span<const Endpoint* const> AllEndpoints();

/// Finds the endpoint, checks method, key and state, and calls it.
void Dispatch(ServerContext& context, std::shared_ptr<Exchange> exchange);

/// Counts and sends a JSON document.
void RespondJson(ServerContext& context, Exchange& exchange, std::string body, int status = 200);
/// Counts and sends an error.
void Refuse(ServerContext& context, Exchange& exchange, const ApiError& error);

/// Runs `parse` on the worker thread, then `then` on the I/O thread; answers with the error if
/// there is one.
template <typename T>
void ParseThen(
    ServerContext& context, std::shared_ptr<Exchange> exchange,
    std::function<ApiResult<T>(const std::string& body, const RequestRules& rules)> parse,
    std::function<void(ServerContext&, std::shared_ptr<Exchange>, T)> then) {
  auto body = std::make_shared<std::string>(std::move(exchange->mutable_request().body));
  context.worker.Post([&context, exchange = std::move(exchange), body, parse = std::move(parse),
                       then = std::move(then), rules = context.Rules()]() mutable {
    auto result = std::make_shared<ApiResult<T>>(parse(*body, rules));
    context.http->Post([&context, exchange = std::move(exchange), result, then = std::move(then)] {
      if (exchange->closed()) return;
      if (const auto* error = std::get_if<ApiError>(result.get()))
        return Refuse(context, *exchange, *error);
      then(context, exchange, std::move(std::get<T>(*result)));
    });
  });
}

/// What endpoints do whose parsing ends in the answer itself, a JSON document.
void RespondParsed(ServerContext& context, std::shared_ptr<Exchange> exchange, std::string body);

/// What both generating endpoints do with a parsed request.
void StartGeneration(ServerContext& context, std::shared_ptr<Exchange> exchange,
                     GenerationSpec spec);

}  // namespace carpool
