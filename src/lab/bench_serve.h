// Load generator for OpenAI-compatible servers: streams completions and measures what clients see.
//
// The numbers and their names are those of the serving benchmarks of vLLM and SGLang: TTFT from
// sending to the first token, ITL between two tokens of a request, TPOT (E2E - TTFT) / (tokens -
// 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace carpool {

struct BenchServeOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::string api_key;
  std::string model;  // empty: the first of /v1/models
  size_t num_prompts = 100;
  size_t max_concurrency = 0;  // 0 = no limit
  double request_rate = 0.0;   // requests per second, Poisson; 0 = all at once
  size_t input_tokens = 32;    // random prompts
  size_t output_tokens = 64;
  std::vector<std::string> prompts;  // instead of random ones; used in turn
  std::string routing;               // set on the server for the run, and set back after it
  uint64_t seed = 0;
};

struct LatencySummary {  // milliseconds
  double mean = 0, median = 0, p95 = 0, p99 = 0, max = 0;
};

struct BenchServeResult {
  size_t completed = 0, failed = 0;
  std::string first_error;
  double seconds = 0;
  size_t input_tokens = 0, output_tokens = 0;
  double mean_concurrency = 0;
  std::string routing;  // what the server said it used
  double distinct_experts_mean = 0, piggyback_rate = 0;
  LatencySummary e2e, ttft, tpot, itl;
};

/// Errors: the server cannot be reached or refuses what the run needs. Failed requests are counted,
/// not errors.
Result<BenchServeResult> BenchServe(const BenchServeOptions& options);

}  // namespace carpool
