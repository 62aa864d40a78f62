// carpool route: gate + policy on logits given in a JSON file {config, logits, bias, rows}.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "routing/gate.h"
#include "routing/router.h"
#include "routing/trace.h"

namespace carpool {

struct RouteInput {
  GateSpec gate;
  std::vector<float> logits;  // [rows, N]
  std::vector<float> bias;    // [N] or empty
  std::vector<RowInfo> rows;
};

/// `config` holds a model's routing fields (any family's names, or N, k, G, kg, act, renorm, rsf),
/// or "preset"; "function" (F1 … F14, vllm-grouped, llama.cpp, …) with "apply", "fused_shared" and
/// "logits_dtype" picks another engine's arithmetic. Numbers may be the strings "NaN", "inf",
/// "-inf". `rows` may be left out: all decode. Errors give the field's path and what was wanted.
Result<RouteInput> ParseRouteInput(std::string_view json, const std::string& where);
/// The same from a file; larger ones than this are refused before they are read.
inline constexpr size_t kMaxRouteFileBytes = size_t{128} << 20;
Result<RouteInput> LoadRouteInput(const std::string& path);

struct RouteOptions {
  std::shared_ptr<const PolicySpec> policy;
  TraceSink* trace = nullptr;
  TraceDetail trace_detail{kMaxTraceLevel};
  std::string replay;  // path of a trace; empty: route by policy
};
/// Routes and reports: ids, weights, distinct, union, reasons, stats. Rows are as long as the
/// largest set; unused slots carry id -1 and weight 0.
Result<std::string> RouteJson(const RouteInput& input, const RouteOptions& options);
Result<std::string> RouteText(const RouteInput& input, const RouteOptions& options);

}  // namespace carpool
