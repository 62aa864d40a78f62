// HttpServer: HTTP/1.1 on one I/O thread. Endpoints know Exchange only; Boost stays inside.
//
// Requests may be pipelined and chunked, connections are kept alive. A client that closes its
// sending side before it has its answer counts as gone. Limits: header and body size, time for a
// request to arrive, time for a write to be taken, unread output, connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/exchange.h"

namespace carpool {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  uint32_t max_header_bytes = 32 * 1024;
  uint64_t max_body_bytes = 16 << 20;
  size_t max_connections = 1024;
  size_t max_unread_bytes = 8 << 20;                 // output a client leaves unread
  std::chrono::milliseconds request_timeout{30000};  // from its first byte to its last
  std::chrono::milliseconds write_timeout{30000};    // for one write to be taken
  std::chrono::milliseconds idle_timeout{75000};     // between requests
  std::chrono::milliseconds ping_interval{15000};    // comments in silent event streams
  std::string cors_origin;                           // allowed origin or "*"; empty: none
};

class HttpServer {
 public:
  struct Callbacks {
    std::function<void(std::shared_ptr<Exchange>)> on_request;
    /// What the parser or a limit refuses before there is a request: the body to send.
    std::function<std::string(int status, std::string_view message)> error_body;
    std::function<void(int signal)> on_signal;  // SIGTERM, SIGINT
    std::function<void()> on_tick;              // about ten times a second
  };

  /// Binds and listens. Errors: InvalidArgument (no such address), Exhausted (address in use).
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options,
                                                    Callbacks callbacks);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  /// Serves on the calling thread until Stop.
  virtual void Run() = 0;
  /// Runs `fn` on the I/O thread. Any thread.
  virtual void Post(std::function<void()> fn) = 0;
  virtual void Stop() = 0;
  // I/O thread only:
  virtual void StopAccepting() = 0;
  /// Connections with a request whose answer is not complete.
  virtual size_t busy_connections() const = 0;
  virtual size_t open_connections() const = 0;
};

}  // namespace carpool
