#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <vector>

#include "routing/policy_spec.h"

namespace carpool {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = std::map<std::string, std::string>;

/// The same number under every name that somebody's dashboard asks for.
template <typename T>
class Aliases {
 public:
  void Add(T& t) { all_.push_back(&t); }
  void Increment(double by = 1.0) {
    for (T* t : all_) t->Increment(by);
  }
  void Observe(double value) {
    for (T* t : all_) t->Observe(value);
  }
  void Set(double value) {
    for (T* t : all_) t->Set(value);
  }

 private:
  std::vector<T*> all_;
};

const Histogram::BucketBoundaries kSeconds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
                                              1,     2,     5,     10,   20,   50,   100, 200, 400};
const Histogram::BucketBoundaries kStepSeconds = {
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
const Histogram::BucketBoundaries kCounts = {1,   2,   4,    8,    16,   32,   64,    128,
                                             256, 512, 1024, 2048, 4096, 8192, 16384, 32768};

void AppendChooser(const ChooserReport& c, std::string& text) {
  text += fmt::format(
      "# HELP carpool:auto_policy_changes_total Changes of policy since auto was switched on\n"
      "# TYPE carpool:auto_policy_changes_total counter\n"
      "carpool:auto_policy_changes_total {}\n"
      "# HELP carpool:auto_fit_live 1: the latency model is fitted to this server's own steps\n"
      "# TYPE carpool:auto_fit_live gauge\n"
      "carpool:auto_fit_live {}\n"
      "# HELP carpool:auto_fit_microseconds The latency model of one MoE layer, by term\n"
      "# TYPE carpool:auto_fit_microseconds gauge\n"
      "carpool:auto_fit_microseconds{{term=\"assignment\"}} {}\n"
      "carpool:auto_fit_microseconds{{term=\"expert\"}} {}\n"
      "carpool:auto_fit_microseconds{{term=\"fixed\"}} {}\n",
      c.changes, c.fit_is_live ? 1 : 0, c.us_per_assignment, c.us_per_expert, c.us_fixed);
}

class MetricsImpl final : public Metrics {
 public:
  MetricsImpl(const std::string& model_name, size_t threads, double bandwidth)
      : bandwidth_(bandwidth) {
    model_ = {{"model_name", model_name}};
    prompt_tokens_ = Counters(
        "Prompt tokens processed",
        {"vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"});
    generation_tokens_ = Counters("Tokens generated",
                                  {"vllm:generation_tokens_total", "sglang:generation_tokens_total",
                                   "llamacpp:tokens_predicted_total"});
    cached_tokens_ =
        Counters("Prompt tokens found in the prefix cache", {"sglang:cached_tokens_total"});
    prompt_seconds_ = Counters("Seconds from admission to first token, summed",
                               {"llamacpp:prompt_seconds_total"});
    decode_seconds_ = Counters("Seconds from first to last token, summed",
                               {"llamacpp:tokens_predicted_seconds_total"});
    requests_ = Counters("Choices started", {"sglang:num_requests_total"});
    aborted_ = Counters("Choices whose client left", {"sglang:num_aborted_requests_total"});
    refused_ =
        Counters("Requests refused because the queue was full", {"vllm:admission_rejections"});
    corrupted_ =
        Counters("Choices ended by logits that are not numbers", {"vllm:corrupted_requests"});
    steps_ = Counters("Engine steps", {"llamacpp:n_decode_total", "carpool:steps_total"});
    expert_bytes_ = Counters("Bytes of routed experts read", {"carpool:expert_bytes_total"});
    assignments_ = Counters("(row, expert) assignments", {"carpool:assignments_total"});
    piggybacks_ = Counters("Assignments to experts that another row had brought into the step",
                           {"carpool:piggyback_assignments_total"});
    dropped_ =
        Counters("Vanilla assignments the policy left out", {"carpool:dropped_assignments_total"});
    ttft_ = Histograms("Seconds from arrival to the first token", kSeconds,
                       {"vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"});
    itl_ = Histograms("Seconds between tokens of a choice", kSeconds,
                      {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
                       "sglang:inter_token_latency_seconds"});
    e2e_ = Histograms("Seconds from arrival to the end of a choice", kSeconds,
                      {"vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"});
    queue_ = Histograms("Seconds in the queue", kSeconds, {"vllm:request_queue_time_seconds"});
    prefill_ = Histograms("Seconds from admission to the first token", kSeconds,
                          {"vllm:request_prefill_time_seconds"});
    decode_ = Histograms("Seconds from the first to the last token", kSeconds,
                         {"vllm:request_decode_time_seconds"});
    inference_ = Histograms("Seconds from admission to the end", kSeconds,
                            {"vllm:request_inference_time_seconds"});
    prompt_length_ =
        Histograms("Prompt tokens of a choice", kCounts, {"vllm:request_prompt_tokens"});
    output_length_ =
        Histograms("Generated tokens of a choice", kCounts, {"vllm:request_generation_tokens"});
    iteration_ = Histograms("Token rows of a step", kCounts, {"vllm:iteration_tokens_total"});
    distinct_decode_ = Distinct("decode");
    distinct_mixed_ = Distinct("mixed");
    constexpr const char* kStages[] = {"attention", "router", "experts", "dense", "head", "other"};
    for (const char* stage : kStages) {
      stages_.push_back(&prometheus::BuildHistogram()
                             .Name("carpool:step_seconds")
                             .Help("Wall-clock seconds of a step, by stage")
                             .Register(registry_)
                             .Add(With({{"stage", stage}}), kStepSeconds));
    }
    running_ = Gauges(
        "Choices being decoded or prefilled",
        {"vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"});
    waiting_ = Gauges("Choices in the queue", {"vllm:num_requests_waiting", "sglang:num_queue_reqs",
                                               "llamacpp:requests_deferred"});
    usage_ =
        Gauges("Fraction of the KV cache held by running choices",
               {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"});
    used_tokens_ = Gauges("Tokens of KV cache held by running choices", {"sglang:num_used_tokens"});
    hit_rate_ =
        Gauges("Prompt tokens found in the prefix cache, fraction", {"sglang:cache_hit_rate"});
    prefix_queries_ =
        Gauges("Prompt tokens looked up in the prefix cache", {"vllm:prefix_cache_queries"});
    prefix_hits_ = Gauges("Prompt tokens found in the prefix cache", {"vllm:prefix_cache_hits"});
    oldest_ =
        Gauges("Seconds the longest waiting choice has waited", {"carpool:oldest_waiting_seconds"});
    connections_ = Gauges("Open connections", {"carpool:connections"});
    active_ = Gauges("Choices the server has not finished with", {"carpool:active_choices"});
    io_cpu_ = Gauges("CPU seconds of the I/O thread", {"carpool:io_cpu_seconds_total"});
    bandwidth_used_ = Gauges(
        "Expert bytes over expert time, as a fraction of the bandwidth "
        "measured at start; since the last scrape",
        {"carpool:bandwidth_utilisation"});
    Gauges("Bytes per second the machine was measured to read at start",
           {"carpool:measured_bandwidth_bytes_per_second"})
        .Set(bandwidth);
    Gauges("Threads of the engine", {"carpool:threads"}).Set(static_cast<double>(threads));
  }

  void OnStep(const Engine& engine) override {
    const StepReport& s = engine.last_step();
    steps_.Increment();
    iteration_.Observe(static_cast<double>(s.rows));
    expert_bytes_.Increment(static_cast<double>(s.expert_bytes));
    assignments_.Increment(static_cast<double>(s.assignments));
    piggybacks_.Increment(static_cast<double>(s.piggybacks));
    dropped_.Increment(static_cast<double>(s.dropped));
    Histogram* distinct = s.decode_rows == s.rows ? distinct_decode_ : distinct_mixed_;
    for (uint32_t t : engine.recorder().distinct()) distinct->Observe(t);
    const uint64_t known = s.attention_ns + s.router_ns + s.experts_ns + s.dense_ns + s.head_ns;
    const uint64_t ns[] = {s.attention_ns, s.router_ns,
                           s.experts_ns,   s.dense_ns,
                           s.head_ns,      s.total_ns > known ? s.total_ns - known : 0};
    for (size_t i = 0; i < std::size(ns); ++i)
      stages_[i]->Observe(static_cast<double>(ns[i]) * 1e-9);
    bytes_since_scrape_.fetch_add(s.expert_bytes, std::memory_order_relaxed);
    ns_since_scrape_.fetch_add(s.experts_ns, std::memory_order_relaxed);
  }

  void OnRequestStart(size_t choices) override {
    requests_.Increment(static_cast<double>(choices));
  }
  void OnFirstToken(double seconds) override {
    ttft_.Observe(seconds);
    generation_tokens_.Increment();
  }
  void OnNextToken(double seconds) override {
    itl_.Observe(seconds);
    generation_tokens_.Increment();
  }
  void OnChoiceEnd(const std::string& finish_reason, const RequestReport& r,
                   double seconds) override {
    prompt_tokens_.Increment(static_cast<double>(r.prompt_tokens));
    cached_tokens_.Increment(static_cast<double>(r.cached_tokens));
    if (finish_reason == "cancelled") return aborted_.Increment();
    if (finish_reason == "error") return corrupted_.Increment();
    prometheus::BuildCounter()
        .Name("vllm:request_success_total")
        .Help("Choices that ended well")
        .Register(registry_)
        .Add(With({{"finished_reason", finish_reason}}))
        .Increment();
    prompt_seconds_.Increment(r.prefill_seconds);
    decode_seconds_.Increment(r.decode_seconds);
    e2e_.Observe(seconds);
    queue_.Observe(r.queue_seconds);
    prefill_.Observe(r.prefill_seconds);
    decode_.Observe(r.decode_seconds);
    inference_.Observe(r.prefill_seconds + r.decode_seconds);
    prompt_length_.Observe(static_cast<double>(r.prompt_tokens));
    output_length_.Observe(static_cast<double>(r.output_tokens));
  }
  void OnRefused() override { refused_.Increment(); }
  void OnHttp(int status) override {
    prometheus::BuildCounter()
        .Name("carpool:http_responses_total")
        .Help("HTTP answers by status; 499: the client left first")
        .Register(registry_)
        .Add({{"status", std::to_string(status)}})
        .Increment();
  }

  std::string Serialize(const EngineGauges& e, const ServerGauges& server) override {
    running_.Set(static_cast<double>(e.running));
    waiting_.Set(static_cast<double>(e.waiting));
    usage_.Set(static_cast<double>(e.pages.running) / static_cast<double>(e.pages.total));
    used_tokens_.Set(static_cast<double>(e.pages.running * kPageTokens));
    hit_rate_.Set(e.prefix_queries == 0
                      ? 0.0
                      : static_cast<double>(e.prefix_hits) / static_cast<double>(e.prefix_queries));
    prefix_queries_.Set(static_cast<double>(e.prefix_queries));
    prefix_hits_.Set(static_cast<double>(e.prefix_hits));
    oldest_.Set(e.oldest_wait_seconds);
    connections_.Set(static_cast<double>(server.open_connections));
    active_.Set(static_cast<double>(server.active_choices));
    io_cpu_.Set(server.io_cpu_seconds);
    const auto bytes = static_cast<double>(bytes_since_scrape_.exchange(0));
    const double seconds = static_cast<double>(ns_since_scrape_.exchange(0)) * 1e-9;
    bandwidth_used_.Set(seconds > 0 && bandwidth_ > 0 ? bytes / seconds / bandwidth_ : 0.0);
    Page("total", e.pages.total);
    Page("free", e.pages.free);
    Page("running", e.pages.running);
    Page("cached", e.pages.cached);
    Page("leaked", e.pages.leaked);
    std::string text = prometheus::TextSerializer().Serialize(registry_.Collect());
    text +=
        "# HELP carpool:routing_info The server's routing policy\n"
        "# TYPE carpool:routing_info gauge\n";
    text += fmt::format("carpool:routing_info{{routing=\"{}\"}} 1\n", e.routing);
    if (e.chooser) AppendChooser(*e.chooser, text);
    return text;
  }

 private:
  Labels With(Labels more) const {
    more.insert(model_.begin(), model_.end());
    return more;
  }
  Aliases<Counter> Counters(const char* help, std::initializer_list<const char*> names) {
    Aliases<Counter> all;
    for (const char* name : names)
      all.Add(prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(model_));
    return all;
  }
  Aliases<Gauge> Gauges(const char* help, std::initializer_list<const char*> names) {
    Aliases<Gauge> all;
    for (const char* name : names)
      all.Add(prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(model_));
    return all;
  }
  Aliases<Histogram> Histograms(const char* help, const Histogram::BucketBoundaries& buckets,
                                std::initializer_list<const char*> names) {
    Aliases<Histogram> all;
    for (const char* name : names) {
      all.Add(prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(model_,
                                                                                         buckets));
    }
    return all;
  }
  Histogram* Distinct(const char* kind) {
    return &prometheus::BuildHistogram()
                .Name("carpool:distinct_experts_per_layer")
                .Help("Distinct routed experts one layer read in one step")
                .Register(registry_)
                .Add(With({{"step", kind}}),
                     Histogram::BucketBoundaries{4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128,
                                                 192, 256, 384, 512});
  }
  void Page(const char* state, size_t pages) {
    prometheus::BuildGauge()
        .Name("carpool:kv_pages")
        .Help("Pages of the KV cache by state")
        .Register(registry_)
        .Add(With({{"state", state}}))
        .Set(static_cast<double>(pages));
  }

  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
  Labels model_;
  double bandwidth_;
  std::atomic<uint64_t> bytes_since_scrape_{0}, ns_since_scrape_{0};
  Aliases<Counter> prompt_tokens_, generation_tokens_, cached_tokens_, prompt_seconds_,
      decode_seconds_, requests_, aborted_, refused_, corrupted_, steps_, expert_bytes_,
      assignments_, piggybacks_, dropped_;
  Aliases<Histogram> ttft_, itl_, e2e_, queue_, prefill_, decode_, inference_, prompt_length_,
      output_length_, iteration_;
  Histogram* distinct_decode_ = nullptr;
  Histogram* distinct_mixed_ = nullptr;
  std::vector<Histogram*> stages_;
  Aliases<Gauge> running_, waiting_, usage_, used_tokens_, hit_rate_, prefix_queries_, prefix_hits_,
      oldest_, connections_, active_, io_cpu_, bandwidth_used_;
};

}  // namespace

EngineGauges ReadGauges(Engine& engine) {
  EngineGauges g;
  g.running = engine.num_running();
  g.waiting = engine.num_waiting();
  g.pages = engine.AccountPages();
  g.prefix_queries = engine.prefix_queries();
  g.prefix_hits = engine.prefix_hits();
  g.oldest_wait_seconds = engine.oldest_wait_seconds();
  g.routing = PolicyText(engine.router().policy());
  if (engine.chooser() != nullptr) g.chooser = engine.chooser()->Report();
  return g;
}

std::unique_ptr<Metrics> Metrics::Make(const std::string& model_name, size_t threads,
                                       double bandwidth) {
  return std::make_unique<MetricsImpl>(model_name, threads, bandwidth);
}

}  // namespace carpool
