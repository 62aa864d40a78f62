// GateSpec: the model's own routing arithmetic. The gate scores and weighs; it never selects (a
// policy does).
//
// One struct spans everything today's engines compute: logits -> scores (activation) -> choice
// (bias, groups) -> weights (renormalisation, scale). The named functions of other engines are
// points of this space (gate_profiles.h). The defaults are Carpool's own: fp32 everywhere, total
// order, epsilon 1e-20.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace carpool {

/// kSigmoidTanh is 0.5 tanh(x/2) + 0.5: the sigmoid as TensorRT-LLM's kernels round it.
enum class GateActivation : uint8_t { kSigmoid, kSoftmax, kSqrtSoftplus, kIdentity, kSigmoidTanh };

/// What experts are ranked by; a is the activation, b the correction bias, x the logit.
enum class GateChoice : uint8_t {
  kScorePlusBias,       // a(x) + b; a(x) without a bias
  kActivationOfBiased,  // a(x + b), and the scores are that too (softmax kernels that take a "logit
                        // bias")
  kLogit,  // x itself, before any activation (top-1 gates that apply a sigmoid afterwards)
};

/// How a group of experts is ranked. kTop2Sum counts duplicates; kTop2Strict takes as second the
/// largest value strictly below the largest.
enum class GroupScore : uint8_t { kNone, kMax, kTop2Sum, kTop2Strict };

/// The choice of experts in dropped groups. kZero reproduces a defect of older kernels: with
/// negative choices a dropped expert wins.
enum class GroupMask : uint8_t { kMinusInfinity, kZero };

/// kTotal: choice descending, id ascending, NaN lowest, -0 == +0. kRawBits: NaN above +inf and -0 <
/// +0, as kernels that sort transformed bit patterns do. kFiniteOnly: NaN and +inf count as -inf.
enum class ChoiceOrder : uint8_t { kTotal, kRawBits, kFiniteOnly };

/// Slots leave in descending choice, or by ascending id (radix kernels).
enum class SlotOrder : uint8_t { kChoiceDescending, kExpertId };

enum class WeightSource : uint8_t { kScore, kChoice, kLogit };

enum class Renormalize : uint8_t { kNone, kDivideBySum, kSoftmaxOverSelected };

/// The divisor of kDivideBySum, with S the sum of the selected weights and e the epsilon.
enum class RenormDivisor : uint8_t {
  kSumPlusEpsilon,  // S + e
  kSumAtLeast,      // max(S, e)
  kSumOrOne,        // S if S > 0, else 1
};

/// Where `scale` multiplies the weights. kNever: the expert layer multiplies its output instead.
enum class ScalePlace : uint8_t { kAlways, kWithRenormalize, kNever };

/// Number formats a gate's intermediate values can be rounded to (to nearest even).
enum class GateNumber : uint8_t { kF32, kBF16, kF16 };

struct GateSpec {
  size_t num_experts = 0;  // N
  size_t top_k = 0;        // k, routed experts per row, fused shared slots not counted
  size_t num_groups = 1;   // n_group
  size_t groups_kept = 1;  // topk_group
  GateActivation activation = GateActivation::kSigmoid;
  bool has_bias = false;  // correction bias; weights never use it unless weight_source says so
  GroupScore group_score = GroupScore::kTop2Sum;
  Renormalize renormalize = Renormalize::kDivideBySum;
  float renorm_epsilon = 1e-20f;
  float scale = 1.0f;  // routed_scaling_factor

  GateChoice choice = GateChoice::kScorePlusBias;
  GroupMask group_mask = GroupMask::kMinusInfinity;
  ChoiceOrder order = ChoiceOrder::kTotal;
  SlotOrder slot_order = SlotOrder::kChoiceDescending;
  WeightSource weight_source = WeightSource::kScore;
  RenormDivisor divisor = RenormDivisor::kSumPlusEpsilon;
  float second_divide_epsilon = 0.0f;  // > 0: after renormalising, divide once more by (S + this)
  ScalePlace scale_place = ScalePlace::kAlways;
  GateNumber logit_number = GateNumber::kF32;   // logits are rounded to this first
  GateNumber score_number = GateNumber::kF32;   // activations
  GateNumber choice_number = GateNumber::kF32;  // choice after adding the bias
  GateNumber bias_number = GateNumber::kF32;    // bias as stored
  GateNumber weight_number = GateNumber::kF32;  // sum, quotient and product of the weighting
  /// Shared experts that travel as extra slots: ids N ... N+s-1, appended after the policy, never
  /// counted in k.
  size_t fused_shared = 0;
  /// Weight of a fused shared slot; 0 = (sum of routed weights) / scale, which after scaling is 1.
  float shared_weight = 0.0f;
};

/// Errors for every impossible configuration: N = 0, k > N, N mod G, kg > G, k > kg N/G, groups of
/// one with top-2 sums, non-finite scale or epsilon, scale <= 0 with fused shared slots. The
/// message starts with the field's name.
Status ValidateGate(const GateSpec& gate);

/// Names used in configs, traces and JSON.
std::string_view Name(GateActivation v);
std::string_view Name(GateChoice v);
std::string_view Name(GroupScore v);
std::string_view Name(GroupMask v);
std::string_view Name(ChoiceOrder v);
std::string_view Name(SlotOrder v);
std::string_view Name(WeightSource v);
std::string_view Name(Renormalize v);
std::string_view Name(RenormDivisor v);
std::string_view Name(ScalePlace v);
std::string_view Name(GateNumber v);

/// The most experts a gate may have; ids must fit the int16 of recorded routes and far beyond any
/// model.
inline constexpr size_t kMaxExperts = 16384;

}  // namespace carpool
