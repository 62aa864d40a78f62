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

/// down(silu(gate(h)) * up(h)).
class DenseMlp : public Mlp {
 public:
  DenseMlp(PackedMatrix gate, PackedMatrix up, PackedMatrix down)
      : gate_(std::move(gate)), up_(std::move(up)), down_(std::move(down)) {}
  void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const override;

 private:
  PackedMatrix gate_, up_, down_;  // [width, hidden], [width, hidden], [hidden, width]
};

/// Router logits in fp32 -> gate + policy over all rows of the step -> every distinct expert once
/// -> weighted sum, plus the shared expert.
class MoeBlock : public Mlp {
 public:
  /// `router` [experts, hidden]; `bias` [experts] or empty: the correction bias, fp32.
  MoeBlock(size_t moe_layer, PackedMatrix router, std::vector<float> bias, ExpertBank experts)
      : moe_layer_(moe_layer),
        router_(std::move(router)),
        bias_(std::move(bias)),
        experts_(std::move(experts)) {}
  void Forward(MatView<const float> h, MatView<float> out, StepContext& step) const override;
  const ExpertBank& experts() const { return experts_; }

 private:
  size_t moe_layer_;
  PackedMatrix router_;
  std::vector<float> bias_;
  ExpertBank experts_;
};

}  // namespace carpool
