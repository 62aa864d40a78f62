// HttpConnection: one client. Reads continuously, so that a client that leaves is noticed while its
// answer is made; parses one request at a time; writes what endpoints give it. Used by
// http_server.cc only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "server/http_server.h"

namespace carpool {

class HttpConnection final : public Exchange, public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;
  using Socket = boost::asio::ip::tcp::socket;

  /// Options and callbacks outlive it. `on_end` is called once, when the socket is closed.
  HttpConnection(Socket socket, const HttpOptions& options, const HttpServer::Callbacks& callbacks,
                 std::function<void(HttpConnection&)> on_end);

  void Start();
  /// Checks the deadlines.
  void Tick(Clock::time_point now);
  void Close();
  bool busy() const { return state_ == State::kBusy; }
  /// No further request once the present one is answered.
  void set_last_request() { keep_alive_ = may_keep_alive_ = false; }

  const HttpRequest& request() const override { return request_; }
  HttpRequest& mutable_request() override { return request_; }
  void Respond(int status, std::string_view content_type, std::string body,
               const HttpHeaders& headers) override;
  void StartStream(int status, std::string_view content_type, const HttpHeaders& headers) override;
  void Write(std::string_view bytes) override;
  void EndStream() override;
  void OnClosed(std::function<void()> callback) override { on_closed_ = std::move(callback); }
  bool closed() const override { return state_ == State::kClosed; }

 private:
  enum class State { kReading, kBusy, kEnding, kClosed };  // kEnding: last bytes are being written
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void NewRequest();
  void Read();
  void OnRead(size_t bytes);
  void Feed();
  void Dispatch();
  void Refuse(int status, std::string_view message);
  void Send(std::string_view bytes);
  void Flush();
  void Head(int status, std::string_view content_type, const HttpHeaders& headers,
            std::string_view framing);
  void AnswerDone();

  Socket socket_;
  const HttpOptions& options_;
  const HttpServer::Callbacks& callbacks_;
  std::function<void(HttpConnection&)> on_end_;
  std::function<void()> on_closed_;
  State state_ = State::kReading;
  boost::beast::flat_buffer input_;
  std::optional<Parser> parser_;
  HttpRequest request_;
  bool keep_alive_ = true;
  bool may_keep_alive_ = true;
  bool http_1_0_ = false;
  bool is_head_ = false;
  bool continue_sent_ = false;
  bool reading_ = false;
  bool answered_ = false;
  bool streaming_ = false;
  bool event_stream_ = false;
  bool linger_ = false;  // refused mid-request: read on and drop what comes
  std::string pending_;
  std::string in_flight_;
  bool writing_ = false;
  Clock::time_point deadline_;  // of the state, or of the write in flight
  Clock::time_point write_deadline_;
  Clock::time_point last_write_;
};

}  // namespace carpool
