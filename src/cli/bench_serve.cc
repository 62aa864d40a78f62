// carpool bench serve: load generator for a running server.
#include "lab/bench_serve.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "cli/bench.h"
#include "cli/engine_flags.h"

namespace carpool::cli {
namespace {

struct BenchServeFlags {
  CommonFlags common;
  BenchServeOptions bench;
  std::string prompt_file;
  std::string concurrency = "0";
};

nlohmann::ordered_json Json(const LatencySummary& s) {
  return {{"mean_ms", s.mean},
          {"median_ms", s.median},
          {"p95_ms", s.p95},
          {"p99_ms", s.p99},
          {"max_ms", s.max}};
}

nlohmann::ordered_json Json(const BenchServeResult& r, size_t concurrency) {
  nlohmann::ordered_json json;
  json["max_concurrency"] = concurrency;
  json["completed"] = r.completed;
  json["failed"] = r.failed;
  json["duration_s"] = r.seconds;
  json["total_input_tokens"] = r.input_tokens;
  json["total_output_tokens"] = r.output_tokens;
  json["request_throughput"] = static_cast<double>(r.completed) / r.seconds;
  json["input_throughput"] = static_cast<double>(r.input_tokens) / r.seconds;
  json["output_throughput"] = static_cast<double>(r.output_tokens) / r.seconds;
  json["total_throughput"] = static_cast<double>(r.input_tokens + r.output_tokens) / r.seconds;
  json["concurrency"] = r.mean_concurrency;
  json["routing"] = r.routing;
  json["distinct_experts_mean"] = r.distinct_experts_mean;
  json["piggyback_rate"] = r.piggyback_rate;
  json["e2e"] = Json(r.e2e);
  json["ttft"] = Json(r.ttft);
  json["tpot"] = Json(r.tpot);
  json["itl"] = Json(r.itl);
  return json;
}

void PrintBenchServe(const BenchServeResult& r) {
  const auto line = [](std::string_view name, const std::string& value) {
    fmt::print("{:<40}{:<10}\n", fmt::format("{}:", name), value);
  };
  const auto count = [&](std::string_view name, size_t n) { line(name, fmt::format("{}", n)); };
  const auto number = [&](std::string_view name, double x) {
    line(name, fmt::format("{:.2f}", x));
  };
  const auto latency = [&](std::string_view title, std::string_view name, const LatencySummary& s) {
    fmt::print("{:-^50}\n", title);
    number(fmt::format("Mean {} (ms)", name), s.mean);
    number(fmt::format("Median {} (ms)", name), s.median);
    number(fmt::format("P95 {} (ms)", name), s.p95);
    number(fmt::format("P99 {} (ms)", name), s.p99);
    number(fmt::format("Max {} (ms)", name), s.max);
  };
  fmt::print("{:=^50}\n", " Serving Benchmark Result ");
  count("Successful requests", r.completed);
  if (r.failed > 0) count("Failed requests", r.failed);
  number("Benchmark duration (s)", r.seconds);
  count("Total input tokens", r.input_tokens);
  count("Total generated tokens", r.output_tokens);
  number("Request throughput (req/s)", static_cast<double>(r.completed) / r.seconds);
  number("Input token throughput (tok/s)", static_cast<double>(r.input_tokens) / r.seconds);
  number("Output token throughput (tok/s)", static_cast<double>(r.output_tokens) / r.seconds);
  number("Total token throughput (tok/s)",
         static_cast<double>(r.input_tokens + r.output_tokens) / r.seconds);
  number("Concurrency", r.mean_concurrency);
  if (!r.routing.empty()) {
    line("Routing", r.routing);
    number("Distinct experts per layer (mean)", r.distinct_experts_mean);
    number("Piggyback rate", r.piggyback_rate);
  }
  latency("End-to-End Latency", "E2E", r.e2e);
  latency("Time to First Token", "TTFT", r.ttft);
  latency("Time per Output Token (excl. 1st token)", "TPOT", r.tpot);
  latency("Inter-Token Latency", "ITL", r.itl);
  fmt::print("{:=^50}\n", "");
}

Status Execute(const BenchServeFlags& flags) {
  BenchServeOptions options = flags.bench;
  options.seed = flags.common.seed;
  options.routing = flags.common.routing;
  if (!flags.prompt_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.prompt_file));
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      if (end > at) options.prompts.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    if (options.prompts.empty())
      return MakeError(ErrorCode::kInvalidArgument, "--prompt-file: {} has no line in it",
                       flags.prompt_file);
  }
  std::vector<size_t> levels = {0};
  if (flags.concurrency != "0") {
    ASSIGN_OR_RETURN(levels, ParseSizes("--max-concurrency", flags.concurrency));
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t level : levels) {
    options.max_concurrency = level;
    ASSIGN_OR_RETURN(const BenchServeResult result, BenchServe(options));
    if (result.completed == 0)
      return MakeError(ErrorCode::kInternal, "no request succeeded: {}", result.first_error);
    if (result.failed > 0)
      fmt::print(stderr, "carpool: {} requests failed, the first with: {}\n", result.failed,
                 result.first_error);
    if (flags.common.json) {
      rows.push_back(Json(result, level));
    } else {
      PrintBenchServe(result);
    }
  }
  if (flags.common.json) fmt::print("{}\n", nlohmann::ordered_json{{"rows", rows}}.dump(2));
  return {};
}

}  // namespace

void AddBenchServe(CLI::App& bench) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* command = AddCommand(bench, "serve", "Load on a running server: throughput, latencies",
                                 [flags] { return Execute(*flags); });
  AddJson(*command, flags->common);
  AddSeed(*command, flags->common);
  BenchServeOptions& o = flags->bench;
  command->add_option("--host", o.host, "Host of the server")->capture_default_str();
  command->add_option("--port", o.port, "Port of the server")->capture_default_str();
  command->add_option("--api-key", o.api_key, "Key of the server")->type_name("KEY");
  command->add_option("--model", o.model, "Model name; default: the server's first")
      ->type_name("NAME");
  command->add_option("--num-prompts", o.num_prompts, "Requests in all")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{10'000'000}));
  command
      ->add_option("--max-concurrency", flags->concurrency,
                   "Requests at a time, or a list such as 1,4,16; 0 = no limit")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--request-rate", o.request_rate, "Requests per second, Poisson; 0 = at once")
      ->capture_default_str()
      ->check(FiniteRange(0.0, 1e6));
  command->add_option("--random-input-len", o.input_tokens, "Tokens of a random prompt")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  command->add_option("--random-output-len", o.output_tokens, "Tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  command->add_option("--prompt-file", flags->prompt_file, "Prompts, one per line, used in turn")
      ->type_name("FILE");
  command
      ->add_option("--routing", flags->common.routing,
                   "Routing policy to set on the server for the run; set back afterwards")
      ->type_name("POLICY");
}

}  // namespace carpool::cli
