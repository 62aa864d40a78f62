#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/logit_rows.h"

namespace carpool {
namespace {

/// Counter-based: the random number of (seed, step) needs no state and no neighbour (splitmix64).
double Uniform(uint64_t seed, uint64_t step) {
  uint64_t z = seed * 0xD1342543DE82EF95ull + (step + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

Status Range(const char* field, double value, double low, double high, bool open_low = false) {
  if (std::isfinite(value) && (open_low ? value > low : value >= low) && value <= high) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{}: wanted {} {} and at most {}, got {}", field,
                   open_low ? "more than" : "at least", low, high, value);
}

}  // namespace

Status ValidateSampling(const SamplingParams& p, size_t vocab_size) {
  RETURN_IF_ERROR(Range("temperature", p.temperature, 0.0, 100.0));
  RETURN_IF_ERROR(Range("top_p", p.top_p, 0.0, 1.0, true));
  RETURN_IF_ERROR(Range("top_k", p.top_k, 0.0, 1e9));
  RETURN_IF_ERROR(Range("min_p", p.min_p, 0.0, 1.0));
  RETURN_IF_ERROR(Range("repetition_penalty", p.repetition_penalty, 0.0, 100.0, true));
  RETURN_IF_ERROR(Range("presence_penalty", p.presence_penalty, -2.0, 2.0));
  RETURN_IF_ERROR(Range("frequency_penalty", p.frequency_penalty, -2.0, 2.0));
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size) {
      return MakeError(ErrorCode::kInvalidArgument, "logit_bias: token id {} is not in [0, {})", id,
                       vocab_size);
    }
    RETURN_IF_ERROR(Range("logit_bias", bias, -100.0, 100.0));
  }
  return {};
}

Sampler::Sampler(std::vector<uint8_t> allowed) {
  for (size_t id = 0; id < allowed.size(); ++id)
    if (allowed[id] == 0) forbidden_.push_back(id);
  counts_.assign(allowed.size(), 0);
  candidates_.reserve(allowed.size());
}

void Sampler::ApplyPenalties(std::span<float> logits, const SamplingParams& p,
                             std::span<const int32_t> prompt, std::span<const int32_t> output) {
  for (const auto& [id, bias] : p.logit_bias) logits[static_cast<size_t>(id)] += bias;
  if (p.repetition_penalty == 1.0f && p.presence_penalty == 0.0f && p.frequency_penalty == 0.0f)
    return;
  // counts_: bit 31 marks "seen", the rest counts output tokens; each id is penalised at its first
  // visit below.
  constexpr uint32_t kSeen = 0x80000000u;
  for (int32_t id : prompt) counts_[static_cast<size_t>(id)] |= kSeen;
  for (int32_t id : output)
    counts_[static_cast<size_t>(id)] = (counts_[static_cast<size_t>(id)] | kSeen) + 1;
  for (const auto ids : {prompt, output}) {
    for (int32_t signed_id : ids) {
      const auto id = static_cast<size_t>(signed_id);
      if (counts_[id] == 0) continue;
      const uint32_t count = counts_[id] & ~kSeen;
      float& l = logits[id];
      l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
      if (count > 0) l -= p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
      counts_[id] = 0;
    }
  }
}

int32_t Sampler::Sample(std::span<float> logits, const SamplingParams& p,
                        std::span<const int32_t> prompt, std::span<const int32_t> output,
                        uint64_t step) {
  ApplyPenalties(logits, p, prompt, output);
  for (const size_t id : forbidden_) logits[id] = -std::numeric_limits<float>::infinity();
  const size_t best = ArgMax(logits);
  if (best == logits.size()) return -1;
  if (p.temperature == 0.0f) return static_cast<int32_t>(best);

  // The smallest temperatures have no finite inverse.
  ExpRow(logits, logits[best], std::min(1.0f / p.temperature, std::numeric_limits<float>::max()));
  candidates_.clear();
  double sum = 0.0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float weight = logits[id];
    if (weight < p.min_p || weight == 0.0f) continue;
    candidates_.emplace_back(weight, static_cast<int32_t>(id));
    sum += weight;
  }
  if (p.top_p < 1.0f || (p.top_k > 0 && static_cast<size_t>(p.top_k) < candidates_.size())) {
    // The smallest set of best candidates that reaches top_p, at most top_k: popped from a heap,
    // best first.
    const auto worse = [](const auto& a, const auto& b) {
      return a.first < b.first || (a.first == b.first && a.second > b.second);
    };
    std::make_heap(candidates_.begin(), candidates_.end(), worse);
    auto heap_end = candidates_.end();
    double kept = 0.0;
    size_t count = 0;
    const size_t limit = p.top_k > 0 ? static_cast<size_t>(p.top_k) : candidates_.size();
    while (heap_end != candidates_.begin() && count < limit &&
           (count == 0 || kept < sum * p.top_p)) {
      std::pop_heap(candidates_.begin(), heap_end, worse);
      --heap_end;
      kept += heap_end->first;
      ++count;
    }
    candidates_.erase(candidates_.begin(), heap_end);
    sum = kept;
  }
  double left = Uniform(p.seed, step) * sum;
  for (const auto& [weight, id] : candidates_) {
    left -= weight;
    if (left < 0) return id;
  }
  return candidates_.back().second;
}

}  // namespace carpool
