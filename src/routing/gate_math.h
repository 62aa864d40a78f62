// The gate's two halves for one row: scoring before a policy selects, weighting after.
#pragma once

#include <cstddef>
#include <cstdint>

#include "routing/gate.h"

namespace carpool {

/// One row's buffers, each [RoundUp(N, kRowBlock)], 64-byte aligned. Owner: the caller.
struct RowScores {
  float* logit = nullptr;      // x, rounded as the gate says
  float* score = nullptr;      // a, without bias
  float* choice = nullptr;     // c; in dropped groups the gate's mask value
  uint32_t* key = nullptr;     // rank key of c; kIneligibleKey in dropped groups and in the padding
  uint8_t* dropped = nullptr;  // 1 where the expert's group was dropped; may be null
};

/// logits: [N]; bias: [N] or null. Fills all buffers, padding included. Returns the number of
/// experts whose choice is NaN. Never fails: any bit pattern is allowed. Same bits on every SIMD
/// target.
size_t ScoreRow(const GateSpec& gate, const float* logits, const float* bias, const RowScores& out);

/// What a gate with groups ranks them by. logits: [N]; bias: [N] or null; scores: [num_groups].
/// `scratch` as for ScoreRow, overwritten. For traces: ScoreRow does not keep them.
void GroupScores(const GateSpec& gate, const float* logits, const float* bias,
                 const RowScores& scratch, float* scores);

/// Weights of `count` selected ids, in slot order: sums run in that order in fp32. `keep_mass` > 0
/// rescales the weights of a gate that does not renormalise so that they sum to it (before
/// `scale`). weights: [count + fused_shared]; the shared slots' weights come last.
void WeighRow(const GateSpec& gate, const RowScores& row, const int32_t* ids, size_t count,
              float keep_mass, float* weights);

/// Sum of the gate's weight source over ids: the mass a row would have kept.
float RowMass(const GateSpec& gate, const RowScores& row, const int32_t* ids, size_t count);

/// Rounds to `number` and back.
float RoundTo(GateNumber number, float value);

}  // namespace carpool
