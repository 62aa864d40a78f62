#include "layers/mlp.h"

#include "layers/stopwatch.h"
#include "ops/elementwise.h"

namespace carpool {

void DenseMlp::Forward(MatView<const float> h, MatView<float> out, StepContext& step) const {
  Stopwatch watch(step.stats.dense_ns);
  ArenaScope scope(step.ops.arena);
  auto gate = step.ops.arena.Matrix<float>(h.rows, gate_.rows());
  auto up = step.ops.arena.Matrix<float>(h.rows, up_.rows());
  const MatMulTarget targets[] = {{&gate_, gate}, {&up_, up}};
  MatMulMany(h, targets, step.ops);
  SiluMul(gate, up);
  MatMul(gate, down_, out, step.ops);
}

void MoeBlock::Forward(MatView<const float> h, MatView<float> out, StepContext& step) const {
  ArenaScope scope(step.ops.arena);
  RoutedStep routed;
  {
    Stopwatch watch(step.stats.router_ns);
    auto logits = step.ops.arena.Matrix<float>(h.rows, router_.rows());
    // The router is never approximated: fp32 activations whatever the rest of the model uses.
    OpContext exact{step.ops.pool, step.ops.arena, Activations::kF32};
    MatMul(h, router_, logits, exact);
    routed = step.router->Route(moe_layer_, step.batch.rows, logits, bias_);
  }
  Stopwatch watch(step.stats.experts_ns);
  RunExperts(experts_, h, routed.plan, out, step.ops);

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
