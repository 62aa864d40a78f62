#include "lab/bench_serve.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "lab/http_client.h"
#include "lab/statistics.h"

namespace carpool {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

double Milliseconds(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

LatencySummary Summarize(const std::vector<double>& ms) {
  if (ms.empty()) return {};
  LatencySummary s;
  for (double v : ms) s.mean += v / static_cast<double>(ms.size());
  s.median = Quantile(ms, 0.5);
  s.p95 = Quantile(ms, 0.95);
  s.p99 = Quantile(ms, 0.99);
  s.max = *std::max_element(ms.begin(), ms.end());
  return s;
}

struct Stream {
  explicit Stream(asio::io_context& io) : socket(io) {}
  tcp::socket socket;
  std::string request;
  HttpAnswerParser parser;
  std::string body;
  size_t parsed = 0;  // bytes of body looked at
  char bytes[16384];
  Clock::time_point sent, last;
  double ttft = 0;
  std::vector<double> itl;
  size_t texts = 0;
  Json usage;
  std::string error;
};

class Run {
 public:
  Run(const BenchServeOptions& options, std::string model, size_t vocab)
      : options_(options), model_(std::move(model)), vocab_(vocab), random_(options.seed) {}

  Result<BenchServeResult> Execute() {
    error_code ec;
    const auto found = tcp::resolver(io_).resolve(options_.host, std::to_string(options_.port), ec);
    if (ec) return MakeError(ErrorCode::kInvalidArgument, "{}: {}", options_.host, ec.message());
    endpoint_ = *found.begin();
    const auto start = Clock::now();
    ScheduleArrivals();
    io_.run();
    result_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    result_.mean_concurrency = busy_ms_ / 1000.0 / result_.seconds;
    result_.e2e = Summarize(e2e_);
    result_.ttft = Summarize(ttft_);
    result_.tpot = Summarize(tpot_);
    result_.itl = Summarize(itl_);
    const auto n = static_cast<double>(std::max<size_t>(result_.completed, 1));
    result_.distinct_experts_mean /= n;
    result_.piggyback_rate /= n;
    return result_;
  }

 private:
  Json Body(size_t i) {
    Json body = {{"model", model_},  {"max_tokens", options_.output_tokens},
                 {"temperature", 0}, {"ignore_eos", true},
                 {"stream", true},   {"stream_options", {{"include_usage", true}}}};
    if (!options_.prompts.empty()) {
      body["prompt"] = options_.prompts[i % options_.prompts.size()];
      return body;
    }
    std::uniform_int_distribution<size_t> id(0, vocab_ - 1);
    Json ids = Json::array();
    for (size_t k = 0; k < options_.input_tokens; ++k) ids.push_back(id(random_));
    body["prompt"] = std::move(ids);
    return body;
  }

  void ScheduleArrivals() {
    if (options_.request_rate <= 0) {
      arrived_ = options_.num_prompts;
      return StartMore();
    }
    Arrive();
  }
  void Arrive() {
    if (arrived_ == options_.num_prompts) return;
    ++arrived_;
    StartMore();
    std::exponential_distribution<double> gap(options_.request_rate);
    timer_.expires_after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random_))));
    timer_.async_wait([this](error_code ec) {
      if (!ec) Arrive();
    });
  }

  void StartMore() {
    while (started_ < arrived_ &&
           (options_.max_concurrency == 0 || running_ < options_.max_concurrency)) {
      ++running_;
      Start(started_++);
    }
  }

  void Start(size_t i) {
    auto s = std::make_shared<Stream>(io_);
    s->request = HttpRequestBytes(options_.host, "POST", "/v1/completions", Body(i).dump(),
                                  options_.api_key);
    s->sent = s->last = Clock::now();
    s->socket.async_connect(endpoint_, [this, s](error_code ec) {
      if (ec) return End(*s, ec.message());
      asio::async_write(s->socket, asio::buffer(s->request), [this, s](error_code e, size_t) {
        if (e) return End(*s, e.message());
        Read(s);
      });
    });
  }

  void Read(const std::shared_ptr<Stream>& s) {
    s->socket.async_read_some(asio::buffer(s->bytes), [this, s](error_code ec, size_t n) {
      if (!s->parser.Feed({s->bytes, n}, s->body)) return End(*s, "not an HTTP answer");
      Events(*s);
      if (s->parser.done()) return End(*s, {});
      if (ec) return End(*s, ec.message());
      Read(s);
    });
  }

  void Events(Stream& s) {
    if (s.parser.status() != 200) return;
    for (size_t end; (end = s.body.find("\n\n", s.parsed)) != std::string::npos;
         s.parsed = end + 2) {
      const std::string_view event = std::string_view(s.body).substr(s.parsed, end - s.parsed);
      if (!event.starts_with("data: ") || event == "data: [DONE]") continue;
      const Json data = Json::parse(event.substr(6), nullptr, false);
      if (data.is_discarded()) {
        s.error = "an event is not valid JSON";
        continue;
      }
      if (data.contains("error")) s.error = data["error"].value("message", "error");
      if (data.contains("usage") && data["usage"].is_object()) s.usage = data["usage"];
      const auto choices = data.find("choices");
      if (choices == data.end() || choices->empty() || (*choices)[0].value("text", "").empty()) {
        continue;
      }
      const auto now = Clock::now();
      const double ms = Milliseconds(now - s.last);
      if (s.texts++ == 0) {
        s.ttft = ms;
      } else {
        s.itl.push_back(ms);
      }
      s.last = now;
    }
    s.body.erase(0, s.parsed);
    s.parsed = 0;
  }

  void End(Stream& s, std::string error) {
    error_code ignored;
    s.socket.close(ignored);
    --running_;
    const auto now = Clock::now();
    busy_ms_ += Milliseconds(now - s.sent);
    if (error.empty()) error = s.error;
    if (error.empty() && s.parser.status() != 200)
      error = fmt::format("HTTP {}: {}", s.parser.status(), s.body.substr(0, 300));
    if (error.empty() && s.texts == 0) error = "no token came";
    if (!error.empty()) {
      ++result_.failed;
      if (result_.first_error.empty()) result_.first_error = error;
      return StartMore();
    }
    ++result_.completed;
    size_t tokens = s.texts;
    if (s.usage.is_object()) {
      tokens = s.usage.value("completion_tokens", s.texts);
      result_.input_tokens += s.usage.value("prompt_tokens", size_t{0});
      if (const auto moe = s.usage.find("moe"); moe != s.usage.end()) {
        result_.routing = moe->value("routing", "");
        result_.distinct_experts_mean += moe->value("distinct_experts_mean", 0.0);
        result_.piggyback_rate += moe->value("piggyback_rate", 0.0);
      }
    }
    result_.output_tokens += tokens;
    const double e2e = Milliseconds(now - s.sent);
    e2e_.push_back(e2e);
    ttft_.push_back(s.ttft);
    if (tokens > 1) tpot_.push_back((e2e - s.ttft) / static_cast<double>(tokens - 1));
    itl_.insert(itl_.end(), s.itl.begin(), s.itl.end());
    StartMore();
  }

  const BenchServeOptions& options_;
  std::string model_;
  size_t vocab_;
  std::mt19937_64 random_;
  asio::io_context io_;
  asio::steady_timer timer_{io_};
  tcp::endpoint endpoint_;
  size_t arrived_ = 0, started_ = 0, running_ = 0;
  double busy_ms_ = 0;
  BenchServeResult result_;
  std::vector<double> e2e_, ttft_, tpot_, itl_;
};

}  // namespace

Result<BenchServeResult> BenchServe(const BenchServeOptions& o) {
  const auto call = [&](std::string_view method, std::string_view path,
                        const std::string& body) -> Result<Json> {
    ASSIGN_OR_RETURN(const HttpAnswer answer,
                     HttpCall(o.host, o.port, method, path, body, o.api_key));
    Json document = Json::parse(answer.body, nullptr, false);
    if (answer.status != 200 || document.is_discarded()) {
      return MakeError(ErrorCode::kInvalidArgument, "{} {}: HTTP {}: {}", method, path,
                       answer.status, answer.body.substr(0, 300));
    }
    return document;
  };
  ASSIGN_OR_RETURN(const Json models, call("GET", "/v1/models", {}));
  std::string model = o.model;
  size_t vocab = 1000;  // of servers that do not say: ids every vocabulary has
  if (models.contains("data") && !models["data"].empty()) {
    const Json& first = models["data"][0];
    if (model.empty()) model = first.value("id", "");
    vocab = first.value("vocab_size", vocab);
  }
  std::string previous;
  if (!o.routing.empty()) {
    ASSIGN_OR_RETURN(const Json set,
                     call("POST", "/v1/moe/routing", Json{{"routing", o.routing}}.dump()));
    previous = set.value("previous", "vanilla");
  }
  auto result = Run(o, model, vocab).Execute();
  if (!previous.empty()) {
    ASSIGN_OR_RETURN(const Json back,
                     call("POST", "/v1/moe/routing", Json{{"routing", previous}}.dump()));
  }
  return result;
}

}  // namespace carpool
