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
  uint64_t id = 0;              // 0: the engine picks one; else unique among all requests
  std::vector<int32_t> prompt;  // not empty, ids in the vocabulary
  size_t max_tokens = 16;       // prompt + max_tokens <= context; 0 only with prompt_logits
  size_t min_tokens = 0;        // stop tokens are not sampled before
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // besides the model's eos ids
  bool ignore_eos = false;
  int32_t priority = 0;  // lower is admitted first; equal: first come, first served
  /// Row options of the routing policy; `exact` opts out. phase and valid are the engine's.
  RowInfo routing;
  /// The sink gets the logits of every prompt token but the last (TokenSink::OnPromptLogits).
  bool prompt_logits = false;
  /// Prompt tokens run as decode rows, so that the policy acts on them as it would on generated
  /// ones.
  bool score_as_decode = false;
  /// The report lists the experts of every token and layer.
  bool record_experts = false;
};

/// What routing did for one request: sums over its decode rows (score_as_decode rows included).
struct RequestMoe {
  uint64_t layer_rows = 0;       // (row, MoE layer) pairs
  uint64_t distinct_sum = 0;     // distinct experts of the step, summed over layer_rows
  uint64_t assignments = 0;      // the request's own
  uint64_t piggybacks = 0;       // of those, rides on experts that another row brought
  double expert_bytes = 0.0;     // share of the expert bytes read: bytes of the step / its rows
  bool batch_dependent = false;  // some row ran under a batch-coupled policy and was not exact
};

/// Given with the last event of a request.
struct RequestReport {
  size_t prompt_tokens = 0;
  size_t cached_tokens = 0;  // prompt tokens taken from the prefix cache
  size_t output_tokens = 0;
  double queue_seconds = 0.0;    // submission to admission
  double prefill_seconds = 0.0;  // admission to the first token
  double decode_seconds = 0.0;   // first token to the last
  RequestMoe moe;
  std::string routing;  // the policy in force at the end; "vanilla" for exact requests
  /// record_experts: [tokens run, MoE layers, expert_width], -1 = unused; the last generated token
  /// is never run.
  std::vector<int32_t> experts;
  size_t expert_width = 0;
};

/// One generated token, or the end of a request.
struct TokenEvent {
  uint64_t request_id = 0;
  int32_t token = -1;  // -1: no token with this event
  FinishReason finish = FinishReason::kNone;
  std::string_view error;                 // kError only
  std::span<const float> logits;          // [vocab], before penalties; valid during the call
  const RequestReport* report = nullptr;  // with finish != kNone; valid during the call
};

/// Receives a request's events on the thread that steps the engine. Must not call back into the
/// engine.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnToken(const TokenEvent& event) = 0;
  /// Requests with prompt_logits: the logits [vocab] that predict prompt token `position` + 1.
  virtual void OnPromptLogits(uint64_t request_id, size_t position, std::span<const float> logits) {
    (void)request_id, (void)position, (void)logits;
  }
};

}  // namespace carpool
