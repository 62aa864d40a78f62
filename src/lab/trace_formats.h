// The readers behind ReadRoutingTrace, one per format, and what they share.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/routing_trace.h"

namespace carpool {

/// Rows by (step, layer).
using TraceSteps = std::map<std::pair<uint64_t, size_t>, std::vector<TracedRow>>;

template <typename... Args>
Error BadTrace(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
}

/// Appends the row of `ids`, unused places (-1) left out; nothing for rows without any. Errors: ids
/// out of range or twice in the row, naming `where`.
Status AddTracedRow(TraceSteps& steps, uint64_t step, size_t layer, size_t request,
                    const int64_t* ids, size_t k, const std::string& where);
Status CheckTracedRow(const TracedRow& row, const std::string& where);

/// Integers of an .npy file, row-major.
struct NpyArray {
  std::vector<uint64_t> shape;
  std::vector<int64_t> values;
};
/// Errors: another type or order, cut short, not three dimensions.
Result<NpyArray> ReadNpyArray(std::string_view bytes, const std::string& where);

/// SGLang's expert-distribution recorder in mode per_token (a torch.save file).
Result<TraceSteps> ReadSglangRecord(std::string_view bytes, const std::string& path);

/// Answers of OpenAI-compatible servers with routed_experts: one JSON document, a list of them, or
/// one per line. Every choice is a request; its n-th generated token runs in step n.
Result<TraceSteps> ReadResponses(std::string_view text, const std::string& path);

}  // namespace carpool
