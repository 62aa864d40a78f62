// Cross-entropy of a text under a routing policy, defined so that anyone can recompute it.
//
// The file is tokenized once into x (nothing prepended). With batch B and context N, W = floor((len
// - 1) / (B N)); stream b owns tokens [b W N, (b + 1) W N); window w of stream b feeds x[b W N + w
// N + i], i < N, from an empty cache and scores the next token; at each i all B rows form one
// decode step.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lab/lockstep.h"
#include "tokenizer/tokenizer.h"

namespace carpool {

struct PerplexityOptions {
  size_t batch = 16;
  size_t context = 256;
  size_t windows = 0;  // only the first K windows of each stream; 0 = all
  Activations activations = Activations::kF32;
  std::function<void(size_t steps_done, size_t steps)> progress;  // may be empty
};

struct PerplexityResult {
  size_t tokens = 0;                   // scored
  double cross_entropy = 0.0;          // mean, nats
  double bits_per_byte = 0.0;          // over the bytes of the scored tokens
  double distinct_experts_mean = 0.0;  // per MoE layer and step
  double experts_per_row_mean = 0.0;
  double seconds = 0.0;
  StepStats stats;
};

/// Windows per stream of a text of `tokens` tokens, or an error that says how many tokens were
/// wanted.
Result<size_t> PerplexityWindows(size_t tokens, const PerplexityOptions& options);

/// `x`: the whole text's token ids. The router takes at least options.batch rows.
Result<PerplexityResult> Perplexity(const Model& model, const Tokenizer& tokenizer,
                                    ThreadPool& pool, Router& router, std::span<const int32_t> x,
                                    const PerplexityOptions& options);

/// Means over the MoE layers and steps in `stats`.
double DistinctExpertsMean(const StepStats& stats);
double ExpertsPerRowMean(const StepStats& stats);

}  // namespace carpool
