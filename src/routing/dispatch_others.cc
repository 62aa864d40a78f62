// Dispatch of vLLM, FlashInfer / TensorRT-LLM, llama.cpp, and Carpool's own kernel choice, as rule
// tables.
#include "routing/dispatch.h"

namespace carpool {
namespace {

using F = Fact;
using C = Compare;

constexpr Predicate kCuda{"device_cuda", F::kDevice, C::kEq, "cuda"};
constexpr Predicate kBias{"bias", F::kBias, C::kEq, true};
constexpr Predicate kNoBias{"no_bias", F::kBias, C::kEq, false};
constexpr Predicate kGrouped{"use_grouped_topk", F::kUseGrouped, C::kEq, true};
constexpr Predicate kCustom{"custom_function", F::kCustomFunction, C::kEq, true};
constexpr Predicate kSoftmax{"scoring_softmax", F::kScoring, C::kEq, "softmax"};
constexpr Predicate kSigmoid{"scoring_sigmoid", F::kScoring, C::kEq, "sigmoid"};
constexpr Predicate kSqrt{"scoring_sqrtsoftplus", F::kScoring, C::kEq, "sqrtsoftplus"};
constexpr Predicate kRenorm{"renormalize", F::kRenormalize, C::kEq, true};
constexpr Predicate kNoRenorm{"no_renormalize", F::kRenormalize, C::kEq, false};
constexpr Predicate kOneGroup{"G_le_1", F::kGroups, C::kLe, 1};
constexpr Predicate kManyGroups{"G_gt_1", F::kGroups, C::kGt, 1};
constexpr Predicate kK32{"k_le_32", F::kTopK, C::kLe, 32};
constexpr Predicate kNoShared{"s_eq_0", F::kShared, C::kEq, 0};

// ---- vLLM: the router factory, then the router's own choice
// -----------------------------------------
constexpr DispatchRule kVllmFactory[] = {
    {"1", "RoutingSimulatorRouter", "", "", {{"simulation_env", F::kSimulation, C::kEq, true}}},
    {"2", "ZeroExpertRouter", "", "", {{"zero_experts", F::kZeroExperts, C::kGt, 0}}},
    {"3",
     "",
     "",
     "GroupedTopKRouter",
     {kGrouped, {"method_specified", F::kMethodUnspecified, C::kEq, false}}},
    {"3", "", "", "GroupedTopKRouter", {kGrouped, kManyGroups}},
    {"4", "CustomRoutingRouter", "", "", {kCustom}},
    {"5", "", "", "FusedTopKBiasRouter", {kBias}},
    {"6", "", "", "FusedTopKRouter", {}},
};
constexpr DispatchRule kVllmGrouped[] = {
    {"G1",
     "fused_topk_bias",
     "vllm-bias",
     "",
     {{"grouping_invalid", F::kGroupsDivide, C::kEq, false}, kBias}},
    {"G2", "fused_topk", "vllm-topk", "", {{"grouping_invalid", F::kGroupsDivide, C::kEq, false}}},
    {"G3",
     "grouped_topk fused, small-expert kernel",
     "vllm-grouped-cuda",
     "",
     {{"env_fused_grouped_topk", F::kFusedGroupedTopk, C::kEq, true},
      kCuda,
      {"G_le_32", F::kGroups, C::kLe, 32},
      kK32,
      kBias,
      kOneGroup,
      {"N_le_512", F::kExperts, C::kLe, 512}}},
    {"G3",
     "grouped_topk fused, small-expert kernel",
     "vllm-grouped-cuda",
     "",
     {{"env_fused_grouped_topk", F::kFusedGroupedTopk, C::kEq, true},
      kCuda,
      {"G_le_32", F::kGroups, C::kLe, 32},
      kK32,
      kBias,
      kManyGroups,
      {"N_le_256", F::kExperts, C::kLe, 256}}},
    {"G4",
     "grouped_topk fused, generic kernel",
     "vllm-grouped-cuda",
     "",
     {{"env_fused_grouped_topk", F::kFusedGroupedTopk, C::kEq, true},
      kCuda,
      {"G_le_32", F::kGroups, C::kLe, 32},
      kK32,
      kBias}},
    {"G5", "grouped_topk (torch)", "vllm-grouped", "", {}},
};
constexpr DispatchRule kVllmBias[] = {
    {"B1",
     "topk_softplus_sqrt",
     "vllm-bias",
     "",
     {kSqrt,
      kRenorm,
      kCuda,
      {"k_eq_6", F::kTopK, C::kEq, 6},
      {"N_in_256_384", F::kExperts, C::kIn, "256,384"}}},
    {"B2", "fused_topk_bias", "vllm-bias", "", {}},
};
constexpr DispatchRule kVllmTopk[] = {
    {"T1", "topk_sigmoid", "vllm-topk", "", {kSigmoid}},
    {"T2", "topk_softmax", "vllm-topk", "", {kSoftmax}},
    {"T3", "unsupported scoring", "", "", {}},
};
constexpr DispatchTable kVllmTables[] = {
    {"router_factory", kVllmFactory},
    {"GroupedTopKRouter", kVllmGrouped},
    {"FusedTopKBiasRouter", kVllmBias},
    {"FusedTopKRouter", kVllmTopk},
};

// ---- TensorRT-LLM generated kernels through FlashInfer
// ------------------------------------------------
constexpr DispatchRule kTrtllmRules[] = {
    {"DeepSeekV3",
     "trtllm_gen DeepSeekV3 (grouped)",
     "trtllm-deepseek-v3",
     "",
     {kSigmoid,
      kBias,
      kRenorm,
      kManyGroups,
      {"G_le_8", F::kGroups, C::kLe, 8},
      {"kg_le_4", F::kGroupsKept, C::kLe, 4},
      {"epg_le_32", F::kPerGroup, C::kLe, 32},
      {"N_le_512", F::kExperts, C::kLe, 512},
      {"k_le_8", F::kTopK, C::kLe, 8},
      {"k_lt_kg_epg", F::kTopK, C::kLt, F::kPerGroupTimesKept}}},
    {"DeepSeekV3",
     "trtllm_gen DeepSeekV3 (custom path)",
     "trtllm-deepseek-v3",
     "",
     {kSigmoid,
      kBias,
      kRenorm,
      kOneGroup,
      kK32,
      kNoShared,
      {"use_grouped_topk", F::kUseGrouped, C::kEq, true}}},
    {"MiniMax2",
     "trtllm_gen MiniMax2",
     "trtllm-deepseek-v3",
     "",
     {kSigmoid, kBias, kRenorm, kOneGroup, kK32, kNoShared}},
    {"Llama4",
     "trtllm_gen Llama4",
     "",
     "",
     {kCustom, kSigmoid, {"k_eq_1", F::kTopK, C::kEq, 1}, {"N_le_128", F::kExperts, C::kLe, 128}}},
    {"SigmoidRenorm",
     "trtllm_gen SigmoidRenorm",
     "trtllm-sigmoid-renorm",
     "",
     {kSigmoid, kNoBias, kRenorm, kOneGroup, kK32, kNoShared}},
    {"Renormalize",
     "trtllm_gen Renormalize",
     "trtllm-renormalize",
     "",
     {kSoftmax, kNoBias, kRenorm, kOneGroup, kK32, kNoShared}},
    {"Default",
     "trtllm_gen Default",
     "trtllm-default",
     "",
     {kSoftmax, kNoBias, kNoRenorm, kOneGroup, kK32, kNoShared}},
    {"Unspecified", "no routing method fits", "", "", {}},
};
constexpr DispatchTable kTrtllmTables[] = {{"routing_method", kTrtllmRules}};

// ---- llama.cpp: one graph; the gating operation and the grouped step vary
// --------------------------------
constexpr DispatchRule kLlamaRules[] = {
    {"L1", "build_moe_ffn: llama4 (top-1 of logits, sigmoid)", "", "", {kCustom, kSigmoid}},
    {"L2",
     "build_moe_ffn: softmax_weight",
     "llama.cpp-softmax-weight",
     "",
     {{"softmax_after_topk", F::kTopkThenSoftmax, C::kEq, true}}},
    {"L3", "build_moe_ffn: grouped", "llama.cpp", "", {kManyGroups}},
    {"L4", "build_moe_ffn: softmax", "llama.cpp", "", {kSoftmax}},
    {"L5", "build_moe_ffn: sigmoid", "llama.cpp", "", {kSigmoid}},
    {"L6", "build_moe_ffn: sqrt_softplus", "llama.cpp", "", {}},
};
constexpr DispatchTable kLlamaTables[] = {{"build_moe_ffn", kLlamaRules}};

// ---- Carpool
// --------------------------------------------------------------------------------------------
constexpr Predicate kVector{"vector_gate", F::kVectorGate, C::kEq, true};
constexpr DispatchRule kCarpoolRules[] = {
    {"C1",
     "score_row + top_k, AVX-512",
     "carpool",
     "",
     {kVector, {"isa", F::kIsa, C::kEq, "AVX3"}}},
    {"C2", "score_row + top_k, AVX2", "carpool", "", {kVector, {"isa", F::kIsa, C::kEq, "AVX2"}}},
    {"C3", "score_row + top_k, baseline SIMD", "carpool", "", {kVector}},
    {"C4", "score_row_scalar + top_k", "carpool", "", {}},
};
constexpr DispatchTable kCarpoolTables[] = {{"score_row", kCarpoolRules}};

}  // namespace

extern const DispatchProfile kVllm;
extern const DispatchProfile kTrtllm;
extern const DispatchProfile kLlamaCpp;
extern const DispatchProfile kCarpool;

const DispatchProfile kVllm{"vllm", "vLLM, 2026", "read in source and issues", kVllmTables, {}};
const DispatchProfile kTrtllm{"flashinfer-trtllm",
                              "TensorRT-LLM generated kernels, through FlashInfer",
                              "read in FlashInfer's copy",
                              kTrtllmTables,
                              {"weights leave as bf16: about 2^-8 relative error",
                               "only the grouped DeepSeekV3 method takes fused shared experts"}};
const DispatchProfile kLlamaCpp{
    "llama.cpp",
    "llama.cpp build_moe_ffn",
    "read in source",
    kLlamaTables,
    {"the sum is clamped at the smallest normal fp16 before the division"}};
const DispatchProfile kCarpool{
    "carpool",
    "Carpool on this machine",
    "this program",
    kCarpoolTables,
    {"results do not depend on the target: all of them give the same bits"}};

}  // namespace carpool
