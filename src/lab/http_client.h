// A blocking HTTP request, and the pieces the load generator's own connections share with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace carpool {

struct HttpAnswer {
  int status = 0;
  std::string body;
};

/// One request over its own connection. Errors: nothing listens there; the connection broke.
Result<HttpAnswer> HttpCall(const std::string& host, uint16_t port, std::string_view method,
                            std::string_view path, std::string_view body, std::string_view api_key);
/// The bytes of a request with a JSON body.
std::string HttpRequestBytes(const std::string& host, std::string_view method,
                             std::string_view path, std::string_view body,
                             std::string_view api_key);

/// Takes an answer apart as it arrives: status, then body without chunk framing.
class HttpAnswerParser {
 public:
  /// Appends what `bytes` bring of the body. False: the bytes are no HTTP answer.
  bool Feed(std::string_view bytes, std::string& body);
  int status() const { return status_; }
  /// The last chunk, or Content-Length bytes, have come.
  bool done() const { return done_; }

 private:
  bool Head();

  std::string held_;
  int status_ = 0;
  bool head_done_ = false;
  bool chunked_ = false;
  bool done_ = false;
  size_t left_ = 0;  // of the chunk or the body
};

}  // namespace carpool
