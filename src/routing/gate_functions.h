// The routing functions of today's engines as points of GateSpec's space: one row of a table each.
//
// What varies per call (sizes, bias, renormalise, "apply the scale on the output", number formats
// of the inputs) is a GateCall; what a function fixes is a GateFunction. MakeGate joins the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "routing/gate.h"

namespace carpool {

/// What a model and its engine pass to a routing function.
struct GateCall {
  size_t num_experts = 0;
  size_t top_k = 0;  // routed experts, fused shared slots not counted
  size_t num_groups = 1;
  size_t groups_kept = 1;
  GateActivation scoring = GateActivation::kSigmoid;
  bool has_bias = false;
  bool renormalize = true;
  float scale = 1.0f;        // routed_scaling_factor
  bool apply_scale = false;  // apply_routed_scaling_factor_on_output
  size_t fused_shared = 0;
  GateNumber logit_number = GateNumber::kF32;
  GateNumber bias_number = GateNumber::kF32;
};

/// When a function renormalises or scales.
enum class GateWhen : uint8_t { kNever, kAsked, kAskedWithRenormalize, kAlways };

struct GateFunction {
  std::string_view id;      // "F6"
  std::string_view name;    // what the engine calls it
  std::string_view engine;  // whose
  /// The activations it has; a call with another scoring is an error. kIdentity first: raw logits
  /// whatever is asked.
  std::span<const GateActivation> activations;
  GateChoice choice;
  GroupScore group_score;           // with a bias
  GroupScore group_score_unbiased;  // without one; kNone: the function has no groups
  GroupMask mask;
  ChoiceOrder order;
  SlotOrder slot_order;
  WeightSource weight_source;
  Renormalize renormalize;
  GateWhen renormalize_when;
  RenormDivisor divisor;
  float epsilon;
  float second_divide_epsilon;
  GateWhen scale_when;
  bool scores_in_input_number;  // scores (and sums) are rounded to the logits' format
  bool choice_in_input_number;  // the choice too
  std::string_view note;
};

/// THE LIST, ids "F1" … "F14" first.
std::span<const GateFunction> AllGateFunctions();
/// By id or name. Errors list the known ids.
Result<const GateFunction*> FindGateFunction(std::string_view id_or_name);
/// Errors: a scoring the function does not have; an impossible configuration (ValidateGate).
Result<GateSpec> MakeGate(const GateFunction& function, const GateCall& call);

}  // namespace carpool
