// How fast policies decode when each generates its own tokens: blocks of steps in mirrored order
// (A B B A, or A B C C B A), so that slow drift of the machine hits all alike.
//
// All blocks run in the same memory (one KV cache, one set of buffers), so that where an allocation
// happened to land cannot favour a policy. Every block of a round starts from the same prompts and
// samples with the same seeds.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lab/bootstrap.h"
#include "lab/lockstep.h"

namespace carpool {

struct PaceOptions {
  size_t batch = 16;
  size_t prompt = 32;  // tokens of the text each sequence starts from, not timed
  size_t steps = 32;   // timed decode steps of a block
  size_t rounds = 12;  // each policy runs two blocks per round
  Activations activations = Activations::kF32;
  uint64_t seed = 0;
  std::function<void(size_t blocks_done, size_t blocks)> progress;  // may be empty
};

struct Pace {
  // Of blocks: the median over a block's steps.
  std::vector<double> step_us;  // [2 rounds]
  std::vector<double> moe_us;   // [2 rounds] per MoE layer
  double step_us_median = 0.0;  // over blocks
  double moe_us_median = 0.0;
  double tokens_per_s = 0.0;  // of the median step
  StepStats stats;            // of the timed steps
};

/// What MeasurePace would reject, without measuring: too few rounds or prompts for an interval
/// (says how many are needed), more positions than the model has. `tokens`: the text's.
Status CheckPace(const Model& model, size_t tokens, const PaceOptions& options);

/// One Pace per router. `x`: the text prompts are cut from, rounds * batch pieces. Errors: as
/// CheckPace.
Result<std::vector<Pace>> MeasurePace(const Model& model, ThreadPool& pool,
                                      std::span<const int32_t> x, std::span<Router* const> routers,
                                      const PaceOptions& options);

/// Bytes of distinct routed experts one step reads, all layers together.
double BytesPerStep(const Pace& pace);

/// candidate / baseline of paired blocks, round by round, as a geometric mean; below 1 is faster.
/// Both as in Pace::step_us.
Interval PairedRatio(std::span<const double> candidate, std::span<const double> baseline,
                     uint64_t seed);

}  // namespace carpool
