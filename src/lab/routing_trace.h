// Recorded expert choices, from Carpool's own traces or other engines', as steps of rows.
//
// Formats, told apart by content:
//   Carpool   JSON lines; the "row" records of a level-2 trace. Decode rows only.
//   SGLang    .pt of its expert-distribution recorder in mode per_token; decode passes are steps.
//   answers   JSON of OpenAI-compatible servers whose choices have routed_experts (vLLM, Carpool);
//             every choice is a request, its n-th generated token runs in step n.
//   NumPy     .npy of integers [tokens, layers, k], as routed experts are saved with numpy.save;
//             `rows_per_step` consecutive tokens make a step.
//   CSV       layer,token,experts with experts separated by blanks or ';' (best first), and
//             optionally columns step and request named in the header; without a step,
//             rows_per_step consecutive token numbers make one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace carpool {

struct TracedRow {
  size_t request = 0;         // whose row; the token where a format does not tell
  std::vector<int32_t> ids;   // the model's own choice, best first
  std::vector<float> scores;  // unbiased gate scores of ids; empty: unknown
};

struct TracedStep {
  uint64_t step = 0;
  size_t layer = 0;
  std::vector<TracedRow> rows;
};

struct RoutingTrace {
  std::string format;      // "carpool", "sglang", "responses", "npy", "csv"
  size_t num_experts = 0;  // largest id + 1, at least
  size_t top_k = 0;        // longest row
  size_t num_layers = 0;
  std::vector<TracedStep> steps;  // by step, then layer
};

/// Errors name the file, the line or field, what was wanted and what was got.
Result<RoutingTrace> ReadRoutingTrace(const std::string& path, size_t rows_per_step);

}  // namespace carpool
