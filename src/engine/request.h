// What a client asks of the engine, and what it gets back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "routing/router.h"

namespace carpool {

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };
std::string_view FinishReasonName(FinishReason reason);

struct Request {
  std::vector<int32_t> prompt;  // not empty, ids in the vocabulary
  size_t max_tokens = 16;       // >= 1; prompt + max_tokens <= context
  size_t min_tokens = 0;        // stop tokens are not sampled before
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // besides the model's eos ids
  bool ignore_eos = false;
  /// Row options of the routing policy; `exact` opts out. phase and valid are the engine's.
  RowInfo routing;
};

/// One generated token, or the end of a request.
struct TokenEvent {
  uint64_t request_id = 0;
  int32_t token = -1;  // -1: no token with this event
  FinishReason finish = FinishReason::kNone;
  std::string_view error;         // kError only
  std::span<const float> logits;  // [vocab], before penalties; valid during the call
};

/// Receives a request's events on the thread that steps the engine. Must not call back into the
/// engine.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnToken(const TokenEvent& event) = 0;
};

}  // namespace carpool
