#include "routing/gate_functions.h"

#include <algorithm>

namespace carpool {
namespace {

using A = GateActivation;
using C = GateChoice;
using G = GroupScore;
using M = GroupMask;
using O = ChoiceOrder;
using S = SlotOrder;
using W = WeightSource;
using R = Renormalize;
using D = RenormDivisor;
using When = GateWhen;

constexpr A kSigmoid[] = {A::kSigmoid};
constexpr A kSoftmax[] = {A::kSoftmax};
constexpr A kSigmoidSoftmax[] = {A::kSigmoid, A::kSoftmax};
constexpr A kSigmoidSqrt[] = {A::kSigmoid, A::kSqrtSoftplus};
constexpr A kAll3[] = {A::kSigmoid, A::kSoftmax, A::kSqrtSoftplus};
constexpr A kRaw[] = {A::kIdentity};
constexpr A kTanh[] = {A::kSigmoidTanh};

constexpr float kFp16SmallestNormal = 6.103515625e-5f;

// clang-format off
constexpr GateFunction kFunctions[] = {
    // id, name, engine, activations, choice, group (biased, unbiased), mask, order, slots, weights, renormalise form, when, divisor, eps, second eps, scale, input-format scores, choice, note
    {"F1", "fused_topk_softmax", "sglang", kSoftmax, C::kActivationOfBiased, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, "a bias is added to the logits before the softmax; NaN unsafe upstream"},
    {"F2", "fused_topk_sigmoid", "sglang", kSigmoid, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, ""},
    {"F3", "fused_topk_torch_native", "sglang", kSigmoidSoftmax, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, "ties unspecified upstream; here: lower id"},
    {"F3b", "fused_topk_torch_native_biased", "sglang", kSigmoidSoftmax, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kNever, true, false, "unsorted upstream; here: choice descending"},
    {"F4", "fused_topk_softmax_torch_raw_logits", "sglang", kRaw, C::kLogit, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kLogit, R::kSoftmaxOverSelected, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, "without renormalise the weights are raw logits, not probabilities (a known defect)"},
    {"F5", "grouped_topk_gpu", "sglang", kSigmoidSoftmax, C::kScorePlusBias, G::kMax, G::kMax, M::kZero, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kAskedWithRenormalize, true, true, "dropped groups are masked with 0, which is below every softmax score only because those are >= 0"},
    {"F6", "biased_grouped_topk_impl", "sglang", kSigmoid, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kAskedWithRenormalize, true, false, "scored in the logits' own format; sum 0 gives NaN"},
    {"F6-s4", "biased_grouped_topk_impl (2026-09)", "sglang", kSigmoid, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 1e-20f, 0, When::kAskedWithRenormalize, true, false, "as F6 with the sum guarded by 1e-20"},
    {"F7", "kimi_k2_biased_topk_impl", "sglang", kSigmoid, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kAskedWithRenormalize, true, false, ""},
    {"F8", "biased_topk_impl", "sglang", kSigmoidSqrt, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kAskedWithRenormalize, true, false, ""},
    {"F9", "moe_fused_gate", "sglang", kSigmoid, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAlways, D::kSumPlusEpsilon, 0, 0, When::kAsked, true, true, "always renormalises, whatever is asked"},
    {"F10", "kimi_k2_moe_fused_gate", "sglang", kSigmoid, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumOrOne, 0, 0, When::kAskedWithRenormalize, false, false, ""},
    {"F11", "flashinfer_fused_topk_deepseek", "flashinfer", kTanh, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kRawBits, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAlways, D::kSumPlusEpsilon, 1e-20f, 0, When::kAsked, false, false, "NaN ranks above +inf and -0 below +0"},
    {"F12", "triton_router", "sglang", kAll3, C::kScorePlusBias, G::kTop2Strict, G::kTop2Strict, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumOrOne, 0, 0, When::kAsked, false, false, "softmax: the bias is added to the logits; group second = largest value strictly below the first"},
    {"F12-radix", "radix_router", "sglang", kAll3, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kExpertId, W::kScore, R::kDivideBySum, When::kAsked, D::kSumOrOne, 0, 0, When::kAsked, false, false, "the same set as F12, slots by expert id"},
    {"F13", "llama4_custom_routing", "sglang", kSigmoid, C::kLogit, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kNone, When::kNever, D::kSumPlusEpsilon, 0, 0, When::kNever, true, false, "the weight multiplies the expert's input"},
    {"F14", "mini_sglang_fused_topk", "mini-sglang", kSoftmax, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 1e-8f, When::kNever, false, false, "divides twice"},
    {"vllm-grouped", "vllm_grouped_topk", "vllm", kSigmoidSoftmax, C::kScorePlusBias, G::kTop2Sum, G::kMax, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kAlways, false, false, "torch fallback; scaled whether or not renormalised"},
    {"vllm-grouped-cuda", "vllm_grouped_topk_fused", "vllm", kSigmoidSoftmax, C::kScorePlusBias, G::kTop2Sum, G::kMax, M::kMinusInfinity, O::kFiniteOnly, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 1e-20f, 0, When::kAlways, false, false, "non-finite choices count as -inf; a row without a valid group gets weights 1/k upstream, not here"},
    {"vllm-bias", "vllm_fused_topk_bias", "vllm", kAll3, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumAtLeast, 1e-20f, 0, When::kAlways, false, false, ""},
    {"vllm-topk", "vllm_fused_topk", "vllm", kSigmoidSoftmax, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, ""},
    {"llama.cpp", "build_moe_ffn", "llama.cpp", kAll3, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumAtLeast, kFp16SmallestNormal, 0, When::kAlways, false, false, "the sum is clamped at the smallest normal fp16"},
    {"llama.cpp-softmax-weight", "build_moe_ffn (softmax_weight)", "llama.cpp", kRaw, C::kLogit, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kLogit, R::kSoftmaxOverSelected, When::kAlways, D::kSumPlusEpsilon, 0, 0, When::kAlways, false, false, "top-k of the logits, then a softmax over the k"},
    {"ik_llama.cpp", "build_moe_ffn (ik_llama.cpp)", "ik_llama.cpp", kAll3, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 0, 0, When::kAlways, false, false, "plain division"},
    {"trtllm-deepseek-v3", "trtllm_gen_deepseek_v3", "flashinfer-trtllm", kSigmoid, C::kScorePlusBias, G::kTop2Sum, G::kTop2Sum, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAlways, D::kSumPlusEpsilon, 1e-20f, 0, When::kAlways, false, false, "weights leave as bf16 upstream"},
    {"trtllm-sigmoid-renorm", "trtllm_gen_sigmoid_renorm", "flashinfer-trtllm", kSigmoid, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAlways, D::kSumAtLeast, 1e-20f, 0, When::kNever, false, false, ""},
    {"trtllm-renormalize", "trtllm_gen_renormalize", "flashinfer-trtllm", kRaw, C::kLogit, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kLogit, R::kSoftmaxOverSelected, When::kAlways, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, ""},
    {"trtllm-default", "trtllm_gen_default", "flashinfer-trtllm", kSoftmax, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kNone, When::kNever, D::kSumPlusEpsilon, 0, 0, When::kNever, false, false, ""},
    {"hf-ernie", "ernie4_5 (transformers)", "transformers", kSoftmax, C::kScorePlusBias, G::kNone, G::kNone, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumAtLeast, 1e-12f, 0, When::kNever, false, false, "the bias affects the choice, not the weights"},
    {"carpool", "carpool_gate", "carpool", kAll3, C::kScorePlusBias, G::kTop2Sum, G::kMax, M::kMinusInfinity, O::kTotal, S::kChoiceDescending, W::kScore, R::kDivideBySum, When::kAsked, D::kSumPlusEpsilon, 1e-20f, 0, When::kAlways, false, false, "fp32 everywhere; total order"},
};
// clang-format on

}  // namespace

std::span<const GateFunction> AllGateFunctions() { return kFunctions; }

Result<const GateFunction*> FindGateFunction(std::string_view id_or_name) {
  for (const GateFunction& f : kFunctions) {
    if (f.id == id_or_name || f.name == id_or_name) return &f;
  }
  std::string known;
  for (const GateFunction& f : kFunctions) {
    if (!known.empty()) known += ", ";
    known += f.id;
  }
  return MakeError(ErrorCode::kInvalidArgument, "unknown routing function '{}'; known: {}",
                   id_or_name, known);
}

Result<GateSpec> MakeGate(const GateFunction& f, const GateCall& call) {
  GateSpec g;
  g.num_experts = call.num_experts;
  g.top_k = call.top_k;
  g.activation = call.scoring;
  if (std::find(f.activations.begin(), f.activations.end(), call.scoring) == f.activations.end()) {
    const bool stands_for_sigmoid =
        f.activations[0] == A::kSigmoidTanh && call.scoring == A::kSigmoid;
    if (f.activations[0] != A::kIdentity && !stands_for_sigmoid) {
      return MakeError(ErrorCode::kInvalidArgument, "scoring: {} ({}) wants {}, got {}", f.id,
                       f.name, Name(f.activations[0]), Name(call.scoring));
    }
    g.activation = f.activations[0];
  }
  const GroupScore group = call.has_bias ? f.group_score : f.group_score_unbiased;
  if (group != G::kNone) {
    g.num_groups = call.num_groups;
    g.groups_kept = call.groups_kept;
    g.group_score = group;
  } else if (call.groups_kept < call.num_groups) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "num_groups: {} ({}) has no group limit, got {} of {} groups", f.id, f.name,
                     call.groups_kept, call.num_groups);
  }
  g.has_bias = call.has_bias;
  // The Triton router adds a bias to the logits, but only in softmax mode.
  const bool logit_bias = f.id.substr(0, 3) == "F12" && call.scoring == A::kSoftmax;
  g.choice = logit_bias ? C::kActivationOfBiased : f.choice;
  g.group_mask = f.mask;
  g.order = f.order;
  g.slot_order = f.slot_order;
  g.weight_source = f.weight_source;
  const bool renormalize = f.renormalize_when == When::kAlways ||
                           (f.renormalize_when == When::kAsked && call.renormalize);
  g.renormalize = renormalize ? f.renormalize : R::kNone;
  g.divisor = f.divisor;
  g.renorm_epsilon = f.epsilon;
  g.second_divide_epsilon = f.second_divide_epsilon;
  g.scale = call.scale;
  g.scale_place = ScalePlace::kNever;
  if (f.scale_when == When::kAlways || (f.scale_when == When::kAsked && call.apply_scale)) {
    g.scale_place = ScalePlace::kAlways;
  } else if (f.scale_when == When::kAskedWithRenormalize && call.apply_scale) {
    g.scale_place = ScalePlace::kWithRenormalize;
  }
  g.logit_number = call.logit_number;
  g.bias_number = call.bias_number;
  if (f.scores_in_input_number) g.score_number = g.weight_number = call.logit_number;
  // Type promotion: a 16-bit score plus an fp32 bias is an fp32 choice.
  const bool narrow =
      f.choice_in_input_number || !call.has_bias || call.bias_number != GateNumber::kF32;
  if (f.scores_in_input_number && narrow) g.choice_number = call.logit_number;
  g.fused_shared = call.fused_shared;
  RETURN_IF_ERROR(ValidateGate(g));
  return g;
}

}  // namespace carpool
