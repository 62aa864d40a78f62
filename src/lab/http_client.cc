#include "lab/http_client.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <charconv>

namespace carpool {
namespace {

using boost::asio::ip::tcp;

/// The value of a header in a lower-cased head.
std::string_view Header(std::string_view head, std::string_view name) {
  const size_t at = head.find(fmt::format("\r\n{}:", name));
  if (at == std::string_view::npos) return {};
  const size_t begin = head.find_first_not_of(' ', at + name.size() + 3);
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

}  // namespace

std::string HttpRequestBytes(const std::string& host, std::string_view method,
                             std::string_view path, std::string_view body,
                             std::string_view api_key) {
  std::string head =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method, path, host);
  if (!api_key.empty()) head += fmt::format("Authorization: Bearer {}\r\n", api_key);
  if (!body.empty())
    head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  return head + "\r\n" + std::string(body);
}

bool HttpAnswerParser::Head() {
  const size_t end = held_.find("\r\n\r\n");
  if (end == std::string::npos) return held_.size() < 65536;
  std::string head = held_.substr(0, end + 2);
  held_.erase(0, end + 4);
  std::transform(head.begin(), head.end(), head.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (!head.starts_with("http/1.") || head.size() < 12) return false;
  std::from_chars(head.data() + 9, head.data() + 12, status_);
  chunked_ = Header(head, "transfer-encoding") == "chunked";
  const std::string_view length = Header(head, "content-length");
  std::from_chars(length.data(), length.data() + length.size(), left_);
  done_ = !chunked_ && left_ == 0;
  head_done_ = true;
  return true;
}

bool HttpAnswerParser::Feed(std::string_view bytes, std::string& body) {
  held_ += bytes;
  if (!head_done_ && (!Head() || !head_done_)) return held_.size() < 65536;
  while (!done_) {
    if (chunked_ && left_ == 0) {
      const size_t begin = held_.starts_with("\r\n") ? 2 : 0;  // after the chunk before
      const size_t end = held_.find("\r\n", begin);
      if (end == std::string::npos) return true;
      const auto [p, ec] = std::from_chars(held_.data() + begin, held_.data() + end, left_, 16);
      if (ec != std::errc()) return false;
      held_.erase(0, end + 2);
      if (left_ == 0) {
        done_ = true;
        return true;
      }
    }
    if (held_.empty()) return true;
    const size_t n = std::min(left_, held_.size());
    body += held_.substr(0, n);
    held_.erase(0, n);
    left_ -= n;
    done_ = !chunked_ && left_ == 0;
  }
  return true;
}

Result<HttpAnswer> HttpCall(const std::string& host, uint16_t port, std::string_view method,
                            std::string_view path, std::string_view body,
                            std::string_view api_key) {
  boost::asio::io_context io;
  boost::system::error_code ec;
  tcp::resolver resolver(io);
  const auto places = resolver.resolve(host, std::to_string(port), ec);
  tcp::socket socket(io);
  if (!ec) boost::asio::connect(socket, places, ec);
  if (ec)
    return MakeError(ErrorCode::kInvalidArgument,
                     "no server at http://{}:{} ({}); start one with 'carpool serve'", host, port,
                     ec.message());
  boost::asio::write(socket,
                     boost::asio::buffer(HttpRequestBytes(host, method, path, body, api_key)), ec);
  HttpAnswerParser parser;
  HttpAnswer answer;
  char bytes[4096];
  while (!ec && !parser.done()) {
    const size_t n = socket.read_some(boost::asio::buffer(bytes), ec);
    if (!parser.Feed({bytes, n}, answer.body)) break;
  }
  if (!parser.done())
    return MakeError(ErrorCode::kInternal, "http://{}:{}{}: the answer broke off", host, port,
                     path);
  answer.status = parser.status();
  return answer;
}

}  // namespace carpool
