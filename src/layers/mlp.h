// The feed-forward half of a layer: dense, or a mixture of experts.
#pragma once

#include <vector>

#include "layers/step.h"
#include "ops/experts.h"
#include "ops/matmul.h"

namespace carpool {

class Mlp {
 public:
  virtual ~Mlp() = default;
  /// out[t, :] = mlp(h[t, :]). h: normed hidden states [rows, hidden]; out: [rows, hidden], must
  /// not alias h.
  virtual void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const = 0;
};

/// down(silu(gate(h)) * up(h)), with biases where a family has them.
class DenseMlp : public Mlp {
 public:
  explicit DenseMlp(ExpertBank::Expert weights) : weights_(std::move(weights)) {}
  void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const override;

 private:
  ExpertBank::Expert weights_;  // gate, up [width, hidden]; down [hidden, width]
};

/// What decides about the experts of a layer.
struct PackedRouter {
  PackedMatrix weight;                 // [experts, hidden]
  std::vector<float> bias;             // [experts] or empty: part of the logits
  std::vector<float> correction_bias;  // [experts] or empty: of the choice only
  PackedMatrix shared_gate;  // [1, hidden] or empty: the shared expert counts sigmoid(gate(h))
};

/// Router logits in fp32 -> gate + policy over all rows of the step -> every distinct expert once
/// -> weighted sum, plus the shared expert.
class MoeBlock : public Mlp {
 public:
  MoeBlock(size_t moe_layer, PackedRouter router, ExpertBank experts)
      : moe_layer_(moe_layer), router_(std::move(router)), experts_(std::move(experts)) {}
  void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const override;
  const ExpertBank& experts() const { return experts_; }

 private:
  size_t moe_layer_;
  PackedRouter router_;
  ExpertBank experts_;
};

}  // namespace carpool
