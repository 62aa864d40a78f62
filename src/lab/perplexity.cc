#include "lab/perplexity.h"

#include <chrono>
#include <numbers>

namespace carpool {

double DistinctExpertsMean(const StepStats& stats) {
  double sum = 0.0;
  for (const auto& layer : stats.moe) sum += static_cast<double>(layer.distinct_experts);
  const auto n = static_cast<double>(stats.moe.size()) * static_cast<double>(stats.steps);
  return n > 0 ? sum / n : 0.0;
}

double ExpertsPerRowMean(const StepStats& stats) {
  double assignments = 0.0, rows = 0.0;
  for (const auto& layer : stats.moe) {
    assignments += static_cast<double>(layer.assignments);
    rows += static_cast<double>(layer.rows);
  }
  return rows > 0 ? assignments / rows : 0.0;
}

Result<size_t> PerplexityWindows(size_t tokens, const PerplexityOptions& o) {
  if (o.batch == 0 || o.context == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--batch and --context: wanted at least 1, got {} and {}", o.batch, o.context);
  }
  const size_t windows = tokens == 0 ? 0 : (tokens - 1) / (o.batch * o.context);
  if (windows == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the text has {} tokens; {} sequences of {} need at least {}; give a longer "
                     "text or a smaller --batch or "
                     "--context",
                     tokens, o.batch, o.context, o.batch * o.context + 1);
  }
  if (o.windows > windows) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--windows: the text has {} windows per stream, got {}", windows, o.windows);
  }
  return windows;
}

Result<PerplexityResult> Perplexity(const Model& model, const Tokenizer& tokenizer,
                                    ThreadPool& pool, Router& router, std::span<const int32_t> x,
                                    const PerplexityOptions& o) {
  ASSIGN_OR_RETURN(const size_t windows, PerplexityWindows(x.size(), o));
  if (o.context > model.config().max_position) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--context: wanted at most the model's {} positions, got {}",
                     model.config().max_position, o.context);
  }
  const size_t scored_windows = o.windows == 0 ? windows : o.windows;
  Lockstep lockstep(model, pool, router, o.activations, o.batch, o.context);
  PerplexityResult result;
  std::vector<int32_t> tokens(o.batch);
  std::vector<double> nats(o.batch);
  double sum = 0.0;
  size_t bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  for (size_t w = 0; w < scored_windows; ++w) {
    lockstep.Reset();
    for (size_t i = 0; i < o.context; ++i) {
      const auto at = [&](size_t b) { return b * windows * o.context + w * o.context + i; };
      for (size_t b = 0; b < o.batch; ++b) tokens[b] = x[at(b)];
      const MatView<const float> logits = lockstep.Step(tokens);
      pool.ParallelFor(o.batch, [&](size_t b, size_t) {
        nats[b] = CrossEntropy(logits.RowSpan(b), x[at(b) + 1]);
      });
      for (size_t b = 0; b < o.batch; ++b) {
        sum += nats[b];
        bytes += tokenizer.TokenBytes(x[at(b) + 1]).size();
      }
      if (o.progress) o.progress(w * o.context + i + 1, scored_windows * o.context);
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.tokens = scored_windows * o.context * o.batch;
  result.cross_entropy = sum / static_cast<double>(result.tokens);
  result.bits_per_byte = bytes == 0 ? 0.0 : sum / std::numbers::ln2 / static_cast<double>(bytes);
  result.distinct_experts_mean = DistinctExpertsMean(lockstep.stats());
  result.experts_per_row_mean = ExpertsPerRowMean(lockstep.stats());
  result.stats = lockstep.stats();
  return result;
}

}  // namespace carpool
