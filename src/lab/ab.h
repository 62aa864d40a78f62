// A/B: what a candidate policy buys and costs against a baseline, in one process on the same
// weights and text, with intervals and a verdict that does not mistake noise for a winner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/pace.h"
#include "lab/quality.h"

namespace carpool {

struct AbOptions {
  PerplexityOptions quality;
  PaceOptions pace;
  double min_effect = 0.01;  // a win's whole interval is beyond this share
  uint64_t seed = 0;
};

struct AbSide {
  std::string routing;
  Quality quality;
  Pace pace;
  // Of the free-running phase; empty where a server does not tell.
  std::optional<double> distinct_experts, expert_bytes_per_step;
  std::optional<double> distinct_experts_teacher_forced, experts_per_row;
  /// Over both phases; changed: vanilla choices left out plus experts put in.
  uint64_t assignments = 0, changed_assignments = 0;
};

enum class AbWinner : uint8_t { kNone, kBaseline, kCandidate };

struct AbReport {
  AbSide baseline, candidate;
  Interval step_ratio;        // candidate / baseline, time of a decode step; below 1 is faster
  Interval moe_ratio;         // the same, time of the MoE layers
  bool has_moe_ratio = true;  // servers do not time their layers
  /// Candidate - baseline, nats per token, and mean KL; both over streams, whose requests are taken
  /// together, since neighbouring text is not independent.
  Interval ce_change, kl_mean;
  bool has_quality = true;            // servers may offer no logprobs of prompts
  bool has_quality_interval = false;  // enough streams for one
  /// KL and top-1 agreement come from the logprobs a server reports, the rest of the vocabulary in
  /// one bucket: the KL is a lower bound.
  bool kl_is_bound = false;
  std::vector<std::string> notes;  // what a reader must know
  AbWinner winner = AbWinner::kNone;
  std::string verdict;  // one or two sentences
};

/// Quality first, teacher-forced; then speed, free-running. Errors: as MeasureQuality and
/// MeasurePace, and policies that cannot differ (an A/A test of one policy with itself is fine).
Result<AbReport> RunAb(const Model& model, ThreadPool& pool, std::span<const int32_t> x,
                       std::shared_ptr<const PolicySpec> baseline,
                       std::shared_ptr<const PolicySpec> candidate, const AbOptions& options);

/// Fills in intervals, winner and verdict from both sides' quality and pace.
void JudgeAb(AbReport& report, double min_effect, uint64_t seed);

/// Why the two policies give every row of a `batch`-row step the same experts though they are not
/// the same text; empty when they can differ or are the same.
std::string WhyNoDifference(const PolicySpec& baseline, const PolicySpec& candidate,
                            const GateSpec& gate, size_t batch);

}  // namespace carpool
