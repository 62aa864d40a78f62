// Sampling: from one row of logits to one token. A request's tokens depend on its seed and its own
// logits only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"

namespace carpool {

struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0 = off
  float min_p = 0.0f;               // [0, 1]: keep p >= min_p * max p
  float repetition_penalty = 1.0f;  // > 0; over prompt and output
  float presence_penalty = 0.0f;    // [-2, 2]; over the output
  float frequency_penalty = 0.0f;   // [-2, 2]; over the output
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

/// Errors name the field, the range and the value.
Status ValidateSampling(const SamplingParams& params, size_t vocab_size);

/// Scratch of the sampler; one per engine, sized once.
class Sampler {
 public:
  /// `allowed[id]` 0: the id has no token string and is never sampled.
  explicit Sampler(std::vector<uint8_t> allowed);

  /// Picks the token at output index `step` (0-based). logits: [vocab], changed in place
  /// (penalties, bias). prompt and output: the request's tokens so far. Ties go to the lower id.
  /// Returns -1 if no logit is a number (a NaN or all -inf row): the request must end with an
  /// error.
  int32_t Sample(std::span<float> logits, const SamplingParams& params,
                 std::span<const int32_t> prompt, std::span<const int32_t> output, uint64_t step);

 private:
  void ApplyPenalties(std::span<float> logits, const SamplingParams& params,
                      std::span<const int32_t> prompt, std::span<const int32_t> output);

  std::vector<size_t> forbidden_;
  std::vector<uint32_t> counts_;                       // [vocab], zero between calls
  std::vector<std::pair<float, int32_t>> candidates_;  // [vocab]
};

}  // namespace carpool
