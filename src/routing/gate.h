// GateSpec: the model's own routing arithmetic. The gate scores and weighs; it never selects (a policy does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/views.h"

namespace carpool {

/// The named points of routing.md's parameter space live in gate_profiles.h; this struct is the space.
enum class GateActivation : uint8_t { kSigmoid, kSoftmax, kSqrtSoftplus, kIdentity };
enum class GroupScore : uint8_t { kNone, kMax, kTop2Sum, kTop2Strict };
enum class Renormalize : uint8_t { kNone, kDivideBySum, kSoftmaxOverSelected };

struct GateSpec {
  size_t num_experts = 0;
  size_t top_k = 0;
  size_t num_groups = 1;       // n_group
  size_t groups_kept = 1;      // topk_group
  GateActivation activation = GateActivation::kSigmoid;
  bool has_bias = false;       // choice = activation + bias (weights never use it)
  GroupScore group_score = GroupScore::kTop2Sum;
  Renormalize renormalize = Renormalize::kDivideBySum;
  float renorm_epsilon = 1e-20f;
  float scale = 1.0f;          // routed_scaling_factor, applied to the weights
};

/// Errors for every impossible configuration (routing.md section 10, API advice). Names the field.
Status ValidateGate(const GateSpec& gate);

}  // namespace carpool
