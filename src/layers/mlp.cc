#include "layers/mlp.h"

#include <cmath>

#include "layers/stopwatch.h"
#include "ops/elementwise.h"

namespace carpool {

void DenseMlp::Forward(MatView<const float> h, MatView<float> out, StepContext& step) const {
  Stopwatch watch(step.stats.dense_ns);
  ArenaScope scope(step.ops.arena);
  const auto& w = weights_;
  auto gate = step.ops.arena.Matrix<float>(h.rows, w.gate.rows());
  auto up = step.ops.arena.Matrix<float>(h.rows, w.up.rows());
  const MatMulTarget targets[] = {{&w.gate, gate}, {&w.up, up}};
  MatMulMany(h, targets, step.ops);
  AddBias(gate, w.gate_bias);
  AddBias(up, w.up_bias);
  SiluMul(gate, up);
  MatMul(gate, w.down, out, step.ops);
  AddBias(out, w.down_bias);
}

void MoeBlock::Forward(MatView<const float> h, MatView<float> out, StepContext& step) const {
  Arena& arena = step.ops.arena;
  ArenaScope scope(arena);
  RoutedStep routed;
  std::span<float> shared_weights;
  {
    Stopwatch watch(step.stats.router_ns);
    auto logits = arena.Matrix<float>(h.rows, router_.weight.rows());
    auto shared = arena.Matrix<float>(h.rows, 1);
    // The router is never approximated: fp32 activations whatever the rest of the model uses.
    OpContext exact{step.ops.pool, arena, Activations::kF32};
    const bool gated = !router_.shared_gate.empty();
    const MatMulTarget targets[] = {{&router_.weight, logits}, {&router_.shared_gate, shared}};
    MatMulMany(h, {targets, gated ? size_t{2} : size_t{1}}, exact);
    AddBias(logits, router_.bias);
    routed = step.router->Route(moe_layer_, step.batch.rows, logits, router_.correction_bias);
    if (gated) {
      shared_weights = arena.Span<float>(h.rows);
      for (size_t t = 0; t < h.rows; ++t)
        shared_weights[t] = 1.0f / (1.0f + std::exp(-shared.Row(t)[0]));
    }
  }
  Stopwatch watch(step.stats.experts_ns);
  RunExperts(experts_, h, routed.plan, out, step.ops, shared_weights);

  RoutingStats& sum = step.stats.moe[moe_layer_];
  sum.rows += routed.stats.rows;
  sum.decode_rows += routed.stats.decode_rows;
  sum.assignments += routed.stats.assignments;
  sum.distinct_experts += routed.stats.distinct_experts;
  sum.piggybacks += routed.stats.piggybacks;
  sum.dropped += routed.stats.dropped;
  sum.changed_rows += routed.stats.changed_rows;
  step.stats.expert_bytes += routed.stats.distinct_experts * experts_.bytes_per_expert();
  if (step.observer != nullptr) step.observer->OnRouted(moe_layer_, routed);
}

}  // namespace carpool
