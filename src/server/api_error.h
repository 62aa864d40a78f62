// ApiError: an error as OpenAI's clients expect it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/exchange.h"

namespace carpool {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // the field at fault; empty: null in JSON
  std::string code;   // "context_length_exceeded", ...; empty: null
};

/// The one place where error codes become HTTP statuses.
ApiError ToApiError(const Error& error);
/// {"error":{"message","type","param","code"}}
std::string ErrorBody(const ApiError& error);
/// Answers with the error; 429 and 503 say when to come back.
void RespondError(Exchange& exchange, const ApiError& error);

}  // namespace carpool
