// Sequence: one request while the engine works on it.
#pragma once

#include <chrono>
#include <vector>

#include "engine/request.h"
#include "layers/kv_cache.h"

namespace carpool {

struct Sequence {
  using Clock = std::chrono::steady_clock;

  uint64_t id = 0;
  Request request;
  TokenSink* sink = nullptr;
  PageTable table;
  std::vector<int32_t> output;
  size_t cached = 0;        // tokens whose cache entries are written
  size_t exact_tokens = 0;  // leading tokens of those that ran with vanilla routing throughout
  uint32_t policy_tag = 0;  // of the pages behind them
  bool one_policy = true;   // all decode rows ran under policy_tag, without row knobs of their own
  bool done = false;
  Clock::time_point submitted, admitted, first_token;
  RequestReport report;

  int32_t TokenAt(size_t position) const {
    return position < request.prompt.size() ? request.prompt[position]
                                            : output[position - request.prompt.size()];
  }
  size_t length() const { return request.prompt.size() + output.size(); }
  bool prefilling() const { return cached < request.prompt.size(); }
  /// Every position must run, cached pages or not.
  bool needs_every_row() const { return request.prompt_logits || request.record_experts; }
};

}  // namespace carpool
