#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace carpool {
namespace {

std::string_view Type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

ApiError ToApiError(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kCorrupt:
      return {400, error.message, {}, {}};
    case ErrorCode::kNotFound:
      return {404, error.message, {}, {}};
    case ErrorCode::kUnsupported:
      return {400, error.message, {}, "unsupported"};
    case ErrorCode::kExhausted:
      return {503, error.message, {}, "overloaded"};
    case ErrorCode::kCancelled:
      return {499, error.message, {}, "cancelled"};
    case ErrorCode::kInternal:
      return {500, error.message, {}, "internal_error"};
  }
  return {500, error.message, {}, "internal_error"};
}

std::string ErrorBody(const ApiError& error) {
  nlohmann::ordered_json e;
  e["message"] = error.message;
  e["type"] = Type(error.status);
  e["param"] = nullptr;
  e["code"] = nullptr;
  if (!error.param.empty()) e["param"] = error.param;
  if (!error.code.empty()) e["code"] = error.code;
  nlohmann::ordered_json body;
  body["error"] = std::move(e);
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void RespondError(Exchange& exchange, const ApiError& error) {
  HttpHeaders headers;
  if (error.status == 503 || error.status == 429) headers.emplace_back("Retry-After", "1");
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  exchange.Respond(error.status, "application/json", ErrorBody(error), headers);
}

}  // namespace carpool
