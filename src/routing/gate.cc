#include "routing/gate.h"

#include <cmath>

namespace carpool {
namespace {

template <typename... Args>
Error Bad(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

}  // namespace

Status ValidateGate(const GateSpec& g) {
  if (g.num_experts == 0 || g.num_experts > kMaxExperts) {
    return Bad("num_experts: wanted 1..{}, got {}", kMaxExperts, g.num_experts);
  }
  if (g.top_k == 0 || g.top_k > g.num_experts) {
    return Bad("top_k: wanted 1..{} (num_experts), got {}", g.num_experts, g.top_k);
  }
  if (g.num_groups == 0 || g.num_experts % g.num_groups != 0) {
    return Bad("num_groups: wanted a divisor of num_experts {}, got {}", g.num_experts,
               g.num_groups);
  }
  if (g.groups_kept == 0 || g.groups_kept > g.num_groups) {
    return Bad("groups_kept: wanted 1..{} (num_groups), got {}", g.num_groups, g.groups_kept);
  }
  const size_t per_group = g.num_experts / g.num_groups;
  if (g.top_k > g.groups_kept * per_group) {
    return Bad("top_k: wanted at most groups_kept * experts per group = {} * {} = {}, got {}",
               g.groups_kept, per_group, g.groups_kept * per_group, g.top_k);
  }
  const bool top2 =
      g.group_score == GroupScore::kTop2Sum || g.group_score == GroupScore::kTop2Strict;
  if (g.num_groups > 1 && top2 && per_group < 2) {
    return Bad(
        "num_groups: groups of one expert have no second maximum for {}; wanted at most {} groups, "
        "got {}",
        Name(g.group_score), g.num_experts / 2, g.num_groups);
  }
  if (g.num_groups > 1 && g.group_score == GroupScore::kNone) {
    return Bad("group_score: wanted max, top2sum or top2strict with {} groups, got none",
               g.num_groups);
  }
  if (!std::isfinite(g.scale)) return Bad("scale: wanted a finite number, got {}", g.scale);
  if (!std::isfinite(g.renorm_epsilon) || g.renorm_epsilon < 0) {
    return Bad("renorm_epsilon: wanted a finite number >= 0, got {}", g.renorm_epsilon);
  }
  if (!std::isfinite(g.second_divide_epsilon) || g.second_divide_epsilon < 0) {
    return Bad("second_divide_epsilon: wanted a finite number >= 0, got {}",
               g.second_divide_epsilon);
  }
  if (g.fused_shared > 64) return Bad("fused_shared: wanted 0..64, got {}", g.fused_shared);
  if (g.fused_shared > 0 && g.scale <= 0) {
    return Bad("scale: wanted > 0 with fused shared slots (their weight is sum / scale), got {}",
               g.scale);
  }
  if (!std::isfinite(g.shared_weight))
    return Bad("shared_weight: wanted a finite number, got {}", g.shared_weight);
  return {};
}

std::string_view Name(GateActivation v) {
  switch (v) {
    case GateActivation::kSigmoid:
      return "sigmoid";
    case GateActivation::kSoftmax:
      return "softmax";
    case GateActivation::kSqrtSoftplus:
      return "sqrtsoftplus";
    case GateActivation::kIdentity:
      return "identity";
    case GateActivation::kSigmoidTanh:
      return "sigmoid_tanh";
  }
  return "?";
}
std::string_view Name(GateChoice v) {
  switch (v) {
    case GateChoice::kScorePlusBias:
      return "score+bias";
    case GateChoice::kActivationOfBiased:
      return "activation(x+bias)";
    case GateChoice::kLogit:
      return "logit";
  }
  return "?";
}
std::string_view Name(GroupScore v) {
  switch (v) {
    case GroupScore::kNone:
      return "none";
    case GroupScore::kMax:
      return "max";
    case GroupScore::kTop2Sum:
      return "top2sum";
    case GroupScore::kTop2Strict:
      return "top2strict";
  }
  return "?";
}
std::string_view Name(GroupMask v) { return v == GroupMask::kZero ? "0" : "-inf"; }
std::string_view Name(ChoiceOrder v) {
  switch (v) {
    case ChoiceOrder::kTotal:
      return "total";
    case ChoiceOrder::kRawBits:
      return "raw_bits";
    case ChoiceOrder::kFiniteOnly:
      return "finite_only";
  }
  return "?";
}
std::string_view Name(SlotOrder v) {
  return v == SlotOrder::kExpertId ? "expert_id" : "choice_descending";
}
std::string_view Name(WeightSource v) {
  switch (v) {
    case WeightSource::kScore:
      return "score";
    case WeightSource::kChoice:
      return "choice";
    case WeightSource::kLogit:
      return "logit";
  }
  return "?";
}
std::string_view Name(Renormalize v) {
  switch (v) {
    case Renormalize::kNone:
      return "none";
    case Renormalize::kDivideBySum:
      return "divide_by_sum";
    case Renormalize::kSoftmaxOverSelected:
      return "softmax_over_selected";
  }
  return "?";
}
std::string_view Name(RenormDivisor v) {
  switch (v) {
    case RenormDivisor::kSumPlusEpsilon:
      return "sum+eps";
    case RenormDivisor::kSumAtLeast:
      return "max(sum,eps)";
    case RenormDivisor::kSumOrOne:
      return "sum_or_1";
  }
  return "?";
}
std::string_view Name(ScalePlace v) {
  switch (v) {
    case ScalePlace::kAlways:
      return "always";
    case ScalePlace::kWithRenormalize:
      return "with_renormalize";
    case ScalePlace::kNever:
      return "after_experts";
  }
  return "?";
}
std::string_view Name(GateNumber v) {
  switch (v) {
    case GateNumber::kF32:
      return "f32";
    case GateNumber::kBF16:
      return "bf16";
    case GateNumber::kF16:
      return "f16";
  }
  return "?";
}

}  // namespace carpool
