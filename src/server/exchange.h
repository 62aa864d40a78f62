// Exchange: one HTTP request and the answer to it. What endpoints see of HTTP.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carpool {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", percent-escapes left as they are
  std::string query;   // after '?'
  std::string authorization;
  std::string origin;
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Belongs to the I/O thread: every call is made there. Answer with Respond once, or with
/// StartStream, Write... and EndStream. After the client has left, all of these do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  /// The request again, to move its body out.
  virtual HttpRequest& mutable_request() = 0;

  virtual void Respond(int status, std::string_view content_type, std::string body,
                       const HttpHeaders& headers = {}) = 0;
  /// A chunked answer. Streams of "text/event-stream" get a comment line now and then while they
  /// are silent.
  virtual void StartStream(int status, std::string_view content_type,
                           const HttpHeaders& headers = {}) = 0;
  virtual void Write(std::string_view bytes) = 0;
  virtual void EndStream() = 0;

  /// Called once if the client leaves before the answer is complete.
  virtual void OnClosed(std::function<void()> callback) = 0;
  virtual bool closed() const = 0;
};

}  // namespace carpool
