#include "server/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <unordered_map>

#include "base/log.h"
#include "server/http_connection.h"

namespace carpool {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kTick{100};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpOptions& options, Callbacks callbacks)
      : options_(options), callbacks_(std::move(callbacks)) {}

  Status Bind() {
    error_code ec;
    const std::string host = options_.host == "localhost" ? "127.0.0.1" : options_.host;
    const auto address = asio::ip::make_address(host, ec);
    if (ec) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "--host: wanted an IP address such as 127.0.0.1 or 0.0.0.0, got '{}'",
                       options_.host);
    }
    const tcp::endpoint endpoint(address, options_.port);
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (ec == asio::error::address_in_use) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}:{} is in use by another server; stop it or choose another --port",
                       options_.host, options_.port);
    }
    if (ec) {
      return MakeError(ErrorCode::kInvalidArgument, "cannot listen on {}:{}: {}", options_.host,
                       options_.port, ec.message());
    }
    return {};
  }

  uint16_t port() const override { return acceptor_.local_endpoint().port(); }

  void Run() override {
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    WaitForSignal();
    Accept();
    Tick();
    io_.run();
    // Connections end here, on the thread they lived on.
    for (auto copy = connections_; auto& [key, connection] : copy) connection->Close();
    connections_.clear();
  }
  void Post(std::function<void()> fn) override { asio::post(io_, std::move(fn)); }
  void Stop() override { io_.stop(); }
  void StopAccepting() override {
    error_code ignored;
    acceptor_.close(ignored);
    for (auto copy = connections_; auto& [key, connection] : copy) {
      if (connection->busy()) {
        connection->set_last_request();
      } else {
        connection->Close();
      }
    }
  }
  size_t busy_connections() const override {
    size_t busy = 0;
    for (const auto& [key, connection] : connections_) busy += connection->busy();
    return busy;
  }
  size_t open_connections() const override { return connections_.size(); }

 private:
  void WaitForSignal() {
    signals_.async_wait([this](error_code ec, int signal) {
      if (ec) return;
      callbacks_.on_signal(signal);
      WaitForSignal();
    });
  }

  void Accept() {
    acceptor_.async_accept([this](error_code ec, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (ec) {  // out of file descriptors, most likely: let some go before trying again
        LogWarning("accept: {}", ec.message());
        retry_.expires_after(kTick);
        retry_.async_wait([this](error_code cancelled) {
          if (!cancelled) Accept();
        });
        return;
      }
      if (connections_.size() < options_.max_connections) {
        auto connection = std::make_shared<HttpConnection>(
            std::move(socket), options_, callbacks_,
            [this](HttpConnection& ended) { connections_.erase(&ended); });
        connections_.emplace(connection.get(), connection);
        connection->Start();
      } else {
        const std::string body = callbacks_.error_body(
            503, fmt::format("{} connections are open, the limit", options_.max_connections));
        const std::string answer = fmt::format(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            "Retry-After: 1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
            body.size(), body);
        socket.non_blocking(true, ec);
        socket.write_some(asio::buffer(answer), ec);
      }
      Accept();
    });
  }

  void Tick() {
    const auto now = HttpConnection::Clock::now();
    for (auto copy = connections_; auto& [key, connection] : copy) connection->Tick(now);
    callbacks_.on_tick();
    tick_.expires_after(kTick);
    tick_.async_wait([this](error_code ec) {
      if (!ec) Tick();
    });
  }

  HttpOptions options_;
  Callbacks callbacks_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  asio::signal_set signals_{io_};
  asio::steady_timer tick_{io_};
  asio::steady_timer retry_{io_};
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options,
                                                       Callbacks callbacks) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(callbacks));
  RETURN_IF_ERROR(server->Bind());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace carpool
