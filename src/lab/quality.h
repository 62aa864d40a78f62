// What policies cost in quality: every policy is fed the same tokens, each with its own KV cache,
// and its distribution is compared with the baseline's at every position.
//
// Text, streams and windows are those of lab/perplexity.h, so the cross-entropy of a policy here is
// the one `carpool perplexity` prints. A request is one window of one stream.
#pragma once

#include <span>
#include <vector>

#include "lab/bootstrap.h"
#include "lab/perplexity.h"

namespace carpool {

struct RequestQuality {
  size_t stream = 0, window = 0;
  double cross_entropy = 0.0;  // mean over the request's tokens, nats
  double kl = 0.0;             // mean
  double top1_agreement = 0.0;
};

struct Quality {
  size_t tokens = 0;
  double cross_entropy = 0.0;
  /// sum p_policy log(p_policy / p_baseline) in nats; exactly 0 where the logits agree bit for bit.
  double kl_mean = 0.0, kl_p50 = 0.0, kl_p99 = 0.0, kl_max = 0.0;  // over positions
  double kl_worst_request = 0.0;                                   // largest mean of a request
  double top1_agreement = 1.0;                                     // share of positions
  std::vector<RequestQuality> requests;
  StepStats stats;
};

struct QualityReport {
  Quality baseline;
  std::vector<Quality> candidates;
};

/// Routers take at least options.batch rows. Errors as Perplexity.
Result<QualityReport> MeasureQuality(const Model& model, ThreadPool& pool,
                                     std::span<const int32_t> x, Router& baseline,
                                     std::span<Router* const> candidates,
                                     const PerplexityOptions& options);

/// KL(candidate || baseline) of two rows of logits, in nats, never below 0.
double KlDivergence(std::span<const float> candidate, std::span<const float> baseline);

}  // namespace carpool
