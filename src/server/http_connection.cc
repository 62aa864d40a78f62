#include "server/http_connection.h"

#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>

namespace carpool {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// Pipelined bytes kept while an answer is being made; reading stops beyond.
constexpr size_t kMaxReadAhead = 64 * 1024;
constexpr size_t kReadBytes = 16 * 1024;
constexpr std::chrono::seconds kLinger{2};

std::string_view View(boost::beast::string_view s) { return {s.data(), s.size()}; }

std::string_view Reason(int status) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return View(reason);
}

}  // namespace

HttpConnection::HttpConnection(Socket socket, const HttpOptions& options,
                               const HttpServer::Callbacks& callbacks,
                               std::function<void(HttpConnection&)> on_end)
    : socket_(std::move(socket)),
      options_(options),
      callbacks_(callbacks),
      on_end_(std::move(on_end)) {}

void HttpConnection::Start() {
  error_code ignored;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  NewRequest();
  deadline_ = Clock::now() + options_.request_timeout;  // a silent newcomer is not an idle regular
  Read();
}

void HttpConnection::NewRequest() {
  state_ = State::kReading;
  parser_.emplace();
  parser_->header_limit(options_.max_header_bytes);
  parser_->body_limit(options_.max_body_bytes);
  parser_->eager(true);
  continue_sent_ = answered_ = streaming_ = event_stream_ = false;
  on_closed_ = nullptr;
  deadline_ = Clock::now() + options_.idle_timeout;
}

void HttpConnection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  reading_ = true;
  socket_.async_read_some(input_.prepare(kReadBytes),
                          [self = shared_from_this()](error_code ec, size_t bytes) {
                            self->reading_ = false;
                            if (ec) return self->Close();
                            self->OnRead(bytes);
                          });
}

void HttpConnection::OnRead(size_t bytes) {
  if (state_ == State::kClosed) return;
  if (linger_) return Read();
  input_.commit(bytes);
  if (state_ == State::kReading) {
    if (!parser_->got_some()) deadline_ = Clock::now() + options_.request_timeout;
    Feed();
  }
  if (state_ == State::kReading || input_.size() < kMaxReadAhead) Read();
}

void HttpConnection::Feed() {
  while (input_.size() > 0 && !parser_->is_done()) {
    error_code ec;
    const size_t used = parser_->put(input_.data(), ec);
    input_.consume(used);
    if (ec == http::error::need_more) break;
    if (ec == http::error::header_limit) {
      return Refuse(431, fmt::format("the request header is longer than {} bytes",
                                     options_.max_header_bytes));
    }
    if (ec == http::error::body_limit) {
      return Refuse(
          413, fmt::format("the request body is longer than {} bytes", options_.max_body_bytes));
    }
    if (ec) return Refuse(400, fmt::format("not a valid HTTP request: {}", ec.message()));
    if (used == 0) break;
  }
  if (parser_->is_header_done() && !continue_sent_ && !parser_->is_done() &&
      boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    continue_sent_ = true;
    Send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  if (parser_->is_done()) Dispatch();
}

void HttpConnection::Dispatch() {
  auto& message = parser_->get();
  state_ = State::kBusy;
  deadline_ = Clock::time_point::max();
  keep_alive_ = message.keep_alive() && may_keep_alive_;
  http_1_0_ = message.version() < 11;
  is_head_ = message.method() == http::verb::head;
  request_ = HttpRequest();
  request_.method = is_head_ ? "GET" : std::string(View(message.method_string()));
  const std::string_view target = View(message.target());
  const size_t question = target.find('?');
  request_.path = target.substr(0, question);
  if (question != std::string_view::npos) request_.query = target.substr(question + 1);
  request_.authorization = View(message[http::field::authorization]);
  request_.origin = View(message[http::field::origin]);
  request_.body = std::move(message.body());
  parser_.reset();
  callbacks_.on_request(shared_from_this());
}

void HttpConnection::Refuse(int status, std::string_view message) {
  // The rest of the request may still be on its way; closing now would reset the connection before
  // the client has read why.
  state_ = State::kBusy;
  linger_ = true;
  keep_alive_ = http_1_0_ = is_head_ = false;
  Respond(status, "application/json", callbacks_.error_body(status, message), {});
}

void HttpConnection::Head(int status, std::string_view content_type, const HttpHeaders& headers,
                          std::string_view framing) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: carpool\r\nContent-Type: {}\r\n{}",
                                 status, Reason(status), content_type, framing);
  for (const auto& [name, value] : headers) head += fmt::format("{}: {}\r\n", name, value);
  const std::string& allowed = options_.cors_origin;
  if (!allowed.empty() && (allowed == "*" || allowed == request_.origin)) {
    head += fmt::format("Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n", allowed);
  }
  if (!keep_alive_) {
    head += "Connection: close\r\n";
  } else if (http_1_0_) {
    head += "Connection: keep-alive\r\n";
  }
  pending_ += head;
  pending_ += "\r\n";
}

void HttpConnection::Respond(int status, std::string_view content_type, std::string body,
                             const HttpHeaders& headers) {
  if (state_ != State::kBusy || answered_) return;
  answered_ = true;
  Head(status, content_type, headers, fmt::format("Content-Length: {}\r\n", body.size()));
  Send(is_head_ ? std::string_view() : body);
  AnswerDone();
}

void HttpConnection::StartStream(int status, std::string_view content_type,
                                 const HttpHeaders& headers) {
  if (state_ != State::kBusy || answered_) return;
  answered_ = streaming_ = true;
  event_stream_ = content_type.starts_with("text/event-stream");
  if (http_1_0_) keep_alive_ = false;  // the end of the connection is the end of the body
  Head(status, content_type, headers,
       http_1_0_ ? "Cache-Control: no-cache\r\n"
                 : "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n");
  Send({});
}

void HttpConnection::Write(std::string_view bytes) {
  if (state_ != State::kBusy || !streaming_ || bytes.empty()) return;
  if (http_1_0_) return Send(bytes);
  pending_ += fmt::format("{:x}\r\n", bytes.size());
  pending_ += bytes;
  Send("\r\n");
}

void HttpConnection::EndStream() {
  if (state_ != State::kBusy || !streaming_) return;
  if (!http_1_0_) Send("0\r\n\r\n");
  AnswerDone();
}

void HttpConnection::AnswerDone() {
  on_closed_ = nullptr;
  state_ = State::kEnding;
  if (!writing_ && pending_.empty()) Flush();
}

void HttpConnection::Send(std::string_view bytes) {
  if (state_ == State::kClosed) return;
  pending_ += bytes;
  last_write_ = Clock::now();
  if (pending_.size() > options_.max_unread_bytes && streaming_) return Close();
  if (!writing_) Flush();
}

void HttpConnection::Flush() {
  if (pending_.empty()) {
    if (state_ != State::kEnding) return;
    if (linger_) {
      error_code ignored;
      socket_.shutdown(Socket::shutdown_send, ignored);
      deadline_ = Clock::now() + kLinger;
      return Read();
    }
    if (!keep_alive_) return Close();
    NewRequest();
    if (input_.size() > 0) {
      deadline_ = Clock::now() + options_.request_timeout;
      Feed();
    }
    return Read();
  }
  writing_ = true;
  in_flight_.swap(pending_);
  pending_.clear();
  write_deadline_ = Clock::now() + options_.write_timeout;
  // Bytes that fit the socket's buffer, nearly all, are taken without a turn of the event loop.
  boost::asio::async_write(socket_, boost::asio::buffer(in_flight_),
                           [self = shared_from_this()](error_code ec, size_t) {
                             self->writing_ = false;
                             if (ec) return self->Close();
                             if (self->state_ != State::kClosed) self->Flush();
                           });
}

void HttpConnection::Tick(Clock::time_point now) {
  if (state_ == State::kClosed) return;
  if (writing_ && now > write_deadline_) return Close();
  if (now > deadline_) {
    if (state_ == State::kReading && parser_->got_some()) {
      return Refuse(408, "the request did not arrive in time");
    }
    return Close();
  }
  if (state_ == State::kBusy && event_stream_ && now - last_write_ > options_.ping_interval) {
    Write(": keep-alive\n\n");
  }
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
  if (auto callback = std::exchange(on_closed_, nullptr)) callback();
  on_end_(*this);
}

}  // namespace carpool
