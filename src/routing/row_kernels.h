// The vector kernels of one row: scoring and top-k, chosen once per process by what the CPU has.
//
// Every target gives the same bits: no fused multiply-add, one polynomial for exp, sums over 16
// fixed lanes. The readable twin is routing/reference.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "routing/gate.h"
#include "routing/gate_math.h"

namespace carpool {

/// True for gates in fp32 with the total order: what models run with. Others (emulated number
/// formats, other engines' orders) take the scalar path of gate_math.cc.
bool HasVectorScoring(const GateSpec& gate);

/// Activation, choice and keys of one row, groups not yet dropped. Needs HasVectorScoring(gate).
/// Returns the number of NaN choices. Scores are within 2 ulp of the exact value.
size_t ScoreRowVector(const GateSpec& gate, const float* logits, const float* bias,
                      const RowScores& out);

/// "AVX3", "AVX2", "SSE2", …
std::string_view RowKernelTarget();

}  // namespace carpool
