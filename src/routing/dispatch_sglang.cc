// SGLang's routing dispatch over time, as rule tables. Ordered as in its sources; the first rule
// whose predicates all hold wins.
#include "routing/dispatch.h"

namespace carpool {
namespace {

using F = Fact;
using C = Compare;
constexpr auto kMany = PredicateWhen::kManyGroups;
constexpr auto kOne = PredicateWhen::kOneGroup;

constexpr Predicate kCuda{"device_cuda", F::kDevice, C::kEq, "cuda"};
constexpr Predicate kMusa{"device_musa", F::kDevice, C::kEq, "musa"};
constexpr Predicate kXpu{"device_xpu", F::kDevice, C::kEq, "xpu"};
constexpr Predicate kAmx{"cpu_amx", F::kAmx, C::kEq, true};
constexpr Predicate kAiter{"aiter", F::kAiter, C::kEq, true};
constexpr Predicate kAvailable{"fn_available", F::kFlashinfer, C::kEq, true};
constexpr Predicate kNoShared{"s_eq_0", F::kShared, C::kEq, 0};
constexpr Predicate kPow2{"pow2_N", F::kExperts, C::kPowerOfTwo, true};
constexpr Predicate kSmallGroups{"epg_le_32", F::kPerGroup, C::kLe, 32};
constexpr Predicate kOneGroupOnly{"G_eq_1", F::kGroups, C::kEq, 1};
constexpr Predicate kManyGroups{"G_gt_1", F::kGroups, C::kGt, 1};
constexpr Predicate kOneKept{"kg_eq_1", F::kGroupsKept, C::kEq, 1};
constexpr Predicate kN384{"N_eq_384", F::kExperts, C::kEq, 384};
constexpr Predicate kGrouped{"use_grouped_topk", F::kUseGrouped, C::kEq, true};
constexpr Predicate kBias{"bias", F::kBias, C::kEq, true};
constexpr Predicate kNoBias{"no_bias", F::kBias, C::kEq, false};
constexpr Predicate kNative{"torch_native", F::kTorchNative, C::kEq, true};
constexpr Predicate kCustom{"custom_function", F::kCustomFunction, C::kEq, true};
constexpr Predicate kSoftmax{"scoring_softmax", F::kScoring, C::kEq, "softmax"};
constexpr Predicate kSigmoid{"scoring_sigmoid", F::kScoring, C::kEq, "sigmoid"};
constexpr Predicate kTrtllm{"runner_trtllm_routed", F::kTrtllmRouted, C::kEq, true};

constexpr DispatchRule kEntryRules[] = {
    {"E1", "", "", "grouped_topk", {kGrouped, kNoBias}},
    {"E2", "", "", "biased_grouped_topk", {kGrouped, kBias}},
    {"E3", "fused_topk_native", "F3", "", {kNative}},
    {"E4", "custom_routing_function", "", "", {kCustom}},
    {"E5", "fused_topk_softmax_torch_raw_logits", "F4", "", {kTrtllm, kSoftmax, kNoBias}},
    {"E6", "", "", "fused_topk", {}},
};
constexpr DispatchRule kEntryRules2025[] = {
    {"E1", "", "", "grouped_topk", {kGrouped, kNoBias}},
    {"E2", "", "", "biased_grouped_topk", {kGrouped, kBias}},
    {"E3", "fused_topk_native", "F3", "", {kNative}},
    {"E4", "custom_routing_function", "", "", {kCustom}},
    {"E5", "", "", "fused_topk", {}},
};
constexpr DispatchRule kGroupedRules[] = {
    {"G1", "grouped_topk_cpu", "F5", "", {kAmx}},
    {"G2", "grouped_topk_gpu", "F5", "", {}},
};
constexpr DispatchRule kFusedRules[] = {
    {"T1", "topk_softmax_cpu", "F1", "", {kAmx, kSoftmax}},
    {"T2", "topk_sigmoid_cpu", "F2", "", {kAmx, kSigmoid}},
    {"T3", "topk_softmax", "F1", "", {kSoftmax}},
    {"T4", "topk_sigmoid", "F2", "", {kSigmoid}},
    {"T5", "unsupported scoring", "", "", {}},
};

constexpr DispatchRule kBiasedRules[] = {
    {"B1", "biased_grouped_topk_cpu", "F6", "", {kAmx}},
    {"B2", "", "", "biased_grouped_topk_gpu", {}},
};

// ---- December 2025 ----------------------------------------------------------------------------
constexpr DispatchRule kBiased2025[] = {
    {"A", "moe_fused_gate", "F9", "", {kCuda, kSmallGroups, kPow2}},
    {"B", "aiter_biased_grouped_topk", "F6", "", {kAiter}},
    {"C", "kimi_k2_moe_fused_gate", "F10", "", {kCuda, kN384, kOneGroupOnly}},
    {"D", "biased_grouped_topk_impl", "F6", "", {}},
};
constexpr DispatchTable kTables2025[] = {
    {"select_experts", kEntryRules2025},
    {"biased_grouped_topk", kBiasedRules},
    {"biased_grouped_topk_gpu", kBiased2025},
    {"grouped_topk", kGroupedRules},
    {"fused_topk", kFusedRules},
};

// ---- The story of an early-2026 analysis of GLM-5, exactly as told ------------------------------
constexpr DispatchRule kSeedEntry[] = {
    {"E1", "", "", "biased_grouped_topk_gpu", {kGrouped, kBias}},
    {"E2", "outside this profile", "", "", {}},
};
constexpr DispatchRule kSeedBiased[] = {
    {"R1", "fused_topk_deepseek", "F11", "", {kCuda, kPow2, kSmallGroups}},
    {"R2", "moe_fused_gate", "F9", "", {kCuda, kSmallGroups, kPow2}},
    {"R4", "kimi_k2_moe_fused_gate", "F10", "", {kCuda, kN384}},
    {"R5", "biased_grouped_topk_impl", "F6", "", {}},
};
constexpr DispatchTable kSeedTables[] = {
    {"select_experts", kSeedEntry},
    {"biased_grouped_topk_gpu", kSeedBiased},
};

// ---- February 2026 ------------------------------------------------------------------------------
constexpr Predicate kKeptFit{"kg_le_G", F::kGroupsKept, C::kLe, F::kGroups};
constexpr Predicate kPerGroup32{"epg_le_32", F::kPerGroup, C::kLe, 32, kMany};
constexpr Predicate kKeptExperts128{"epgkg_le_128", F::kPerGroupTimesKept, C::kLe, 128, kMany};
constexpr Predicate kExperts384{"N_le_384", F::kExperts, C::kLe, 384, kOne};

constexpr DispatchRule kBiased202602[] = {
    {"R1",
     "flashinfer_fused_topk_deepseek",
     "F11",
     "",
     {kCuda,
      kAvailable,
      kNoShared,
      kPow2,
      {"K_le_8", F::kSlots, C::kLe, 8},
      kKeptFit,
      {"kgG_ge_K", F::kGroupsTimesKept, C::kGe, F::kSlots},
      kPerGroup32,
      kKeptExperts128,
      kExperts384}},
    {"R2", "moe_fused_gate", "F9", "", {kCuda, kSmallGroups, kPow2}},
    {"R3", "aiter_biased_grouped_topk", "F6", "", {kAiter}},
    {"R4", "kimi_k2_moe_fused_gate", "F10", "", {kCuda, kN384, kOneGroupOnly}},
    {"R5", "biased_grouped_topk_impl", "F6", "", {}},
};
constexpr DispatchTable kTables202602[] = {
    {"select_experts", kEntryRules},
    {"biased_grouped_topk", kBiasedRules},
    {"biased_grouped_topk_gpu", kBiased202602},
    {"grouped_topk", kGroupedRules},
    {"fused_topk", kFusedRules},
};

// ---- May 2026: k instead of K, shared slots appended after the kernel
// ----------------------------
constexpr Predicate kMusaSizes{"N_in_160_256_384", F::kExperts, C::kIn, "160,256,384"};
constexpr DispatchRule kBiased202605[] = {
    {"R1",
     "flashinfer_fused_topk_deepseek",
     "F11",
     "",
     {kCuda,
      kAvailable,
      kPow2,
      {"k_le_8", F::kTopK, C::kLe, 8},
      kKeptFit,
      {"kgG_ge_k", F::kGroupsTimesKept, C::kGe, F::kTopK},
      kPerGroup32,
      kKeptExperts128,
      kExperts384}},
    {"R2", "moe_fused_gate", "F9", "", {kCuda, kSmallGroups, kPow2}},
    {"R3", "aiter_biased_grouped_topk", "F6", "", {kAiter}},
    {"R3b", "musa_fused_gate", "F9", "", {kMusa, kSmallGroups}},
    {"R3b", "musa_fused_gate", "F9", "", {kMusa, kOneGroupOnly, kMusaSizes}},
    {"R4", "kimi_k2_moe_fused_gate", "F10", "", {kCuda, kN384, kOneGroupOnly}},
    {"R4b",
     "jit_grouped_topk",
     "F12",
     "",
     {kCuda,
      kOneGroupOnly,
      kOneKept,
      kNoShared,
      {"N_le_512", F::kExperts, C::kLe, 512},
      {"K_le_8", F::kSlots, C::kLe, 8}}},
    {"R5", "biased_grouped_topk_impl", "F6", "", {}},
};
constexpr DispatchTable kTables202605[] = {
    {"select_experts", kEntryRules},
    {"biased_grouped_topk", kBiasedRules},
    {"biased_grouped_topk_gpu", kBiased202605},
    {"grouped_topk", kGroupedRules},
    {"fused_topk", kFusedRules},
};

// ---- September 2026: one Triton router
// -------------------------------------------------------------
constexpr Predicate kCudaOrHip{"device_cuda_or_hip", F::kDevice, C::kIn, "cuda,hip"};
constexpr DispatchRule kBiased202609[] = {
    {"R0",
     "triton_router",
     "F12",
     "",
     {{"env_jit_grouped_topk", F::kJitGroupedTopk, C::kEq, true}, kCudaOrHip, kManyGroups}},
    {"R1",
     "flashinfer_fused_topk_deepseek",
     "F11",
     "",
     {kCuda,
      kAvailable,
      kPow2,
      {"k_le_8", F::kTopK, C::kLe, 8},
      kKeptFit,
      {"kgG_ge_k", F::kGroupsTimesKept, C::kGe, F::kTopK},
      kPerGroup32,
      kKeptExperts128,
      kExperts384}},
    {"R2", "triton_router", "F12", "", {kCuda, kManyGroups}},
    {"R3", "aiter_biased_grouped_topk", "F6-s4", "", {kAiter}},
    {"R3b", "musa_fused_gate", "F9", "", {kMusa, kSmallGroups}},
    {"R3b", "musa_fused_gate", "F9", "", {kMusa, kOneGroupOnly, kMusaSizes}},
    {"R4", "triton_router", "F12", "", {kCuda, kOneGroupOnly, kOneKept, kN384}},
    {"R4",
     "radix_router",
     "F12-radix",
     "",
     {kCuda,
      kOneGroupOnly,
      kOneKept,
      {"N_gt_512", F::kExperts, C::kGt, 512},
      {"N_le_1024", F::kExperts, C::kLe, 1024}}},
    {"R4",
     "triton_router",
     "F12",
     "",
     {kCuda,
      kOneGroupOnly,
      kOneKept,
      {"N_le_1024", F::kExperts, C::kLe, 1024},
      {"K_gt_8", F::kSlots, C::kGt, 8}}},
    {"R4b",
     "triton_router",
     "F12",
     "",
     {kCuda,
      kOneGroupOnly,
      kOneKept,
      kNoShared,
      {"N_le_512", F::kExperts, C::kLe, 512},
      {"K_le_32", F::kSlots, C::kLe, 32}}},
    {"R6",
     "topk_sigmoid (xpu)",
     "F2",
     "",
     {kXpu,
      kOneGroupOnly,
      {"N_le_256", F::kExperts, C::kLe, 256},
      {"K_le_8", F::kSlots, C::kLe, 8}}},
    {"R6", "moe_fused_gate (xpu)", "F9", "", {kXpu, kSmallGroups, kPow2}},
    {"R5", "biased_grouped_topk_impl", "F6-s4", "", {}},
};
constexpr DispatchRule kEntryRules202609[] = {
    {"E1", "", "", "grouped_topk", {kGrouped, kNoBias}},
    {"E2", "", "", "biased_grouped_topk", {kGrouped, kBias}},
    {"E3", "fused_topk_native", "F3", "", {kNative}},
    {"E4", "custom_routing_function", "", "", {kCustom}},
    {"E5",
     "biased_topk_jit_kernel",
     "F12",
     "",
     {{"not_cpu", F::kDevice, C::kNe, "cpu"},
      {"scoring_sigmoid_or_sqrtsoftplus", F::kScoring, C::kIn, "sigmoid,sqrtsoftplus"}}},
    {"E6", "fused_topk_softmax_torch_raw_logits", "F4", "", {kTrtllm, kSoftmax, kNoBias}},
    {"E7", "", "", "fused_topk", {}},
};
constexpr DispatchRule kFusedRules202609[] = {
    {"T1", "topk_softmax_cpu", "F1", "", {kAmx, kSoftmax}},
    {"T2", "topk_sigmoid_cpu", "F2", "", {kAmx, kSigmoid}},
    {"T3", "triton_router", "F12", "", {kSoftmax}},
    {"T4", "topk_sigmoid", "F2", "", {kSigmoid}},
    {"T5", "unsupported scoring", "", "", {}},
};
constexpr DispatchTable kTables202609[] = {
    {"select_experts", kEntryRules202609},      {"biased_grouped_topk", kBiasedRules},
    {"biased_grouped_topk_gpu", kBiased202609}, {"grouped_topk", kGroupedRules},
    {"fused_topk", kFusedRules202609},
};

// ---- CPU build (AMX kernels)
// -----------------------------------------------------------------------
constexpr Predicate kCpuSizes{"N_instantiated", F::kExperts, C::kIn,
                              "1,2,4,8,16,32,64,128,160,192,256,384"};
constexpr DispatchRule kCpuEntry[] = {
    {"E0", "torch_native", "F3", "", {{"no_amx", F::kAmx, C::kEq, false}}},
    {"E1", "", "", "grouped_topk", {kGrouped, kNoBias}},
    {"E2", "", "", "biased_grouped_topk", {kGrouped, kBias}},
    {"E3", "custom_routing_function", "", "", {kCustom}},
    {"E4", "", "", "fused_topk", {}},
};
constexpr DispatchRule kCpuGrouped[] = {
    {"C1", "grouped_topk_cpu", "F5", "", {kNoShared, kCpuSizes}},
    {"C2", "refused: no instantiation", "", "", {}},
};
constexpr DispatchRule kCpuBiased[] = {
    {"C1", "biased_grouped_topk_cpu", "F6", "", {kNoShared, kCpuSizes}},
    {"C2", "refused: no instantiation", "", "", {}},
};
constexpr DispatchRule kCpuFused[] = {
    {"C1", "topk_softmax_cpu", "F1", "", {kSoftmax, kCpuSizes}},
    {"C2", "topk_sigmoid_cpu", "F2", "", {kSigmoid, kCpuSizes}},
    {"C3", "refused: no instantiation", "", "", {}},
};
constexpr DispatchTable kCpuTables[] = {
    {"select_experts", kCpuEntry},
    {"biased_grouped_topk", kCpuBiased},
    {"grouped_topk", kCpuGrouped},
    {"fused_topk", kCpuFused},
};

}  // namespace

extern const DispatchProfile kSglang2025;
extern const DispatchProfile kSeedDoc;
extern const DispatchProfile kSglang202602;
extern const DispatchProfile kSglang202605;
extern const DispatchProfile kSglang202609;
extern const DispatchProfile kSglangCpu;

const DispatchProfile kSglang2025{
    "sglang-2025-12", "SGLang, December 2025", "stored text of commit 06c48ca8", kTables2025, {}};
const DispatchProfile kSeedDoc{
    "seed-doc",
    "SGLang in early 2026, as one analysis of GLM-5 told it",
    "retold, not read in a source",
    kSeedTables,
    {"the experts-per-group test is unconditional here; stored texts of that time (sglang-2026-02) "
     "apply it only with "
     "more than one group and stop GLM-5 at kg*G >= K instead; same final kernel",
     "biased_grouped_topk_impl is compiled from plain tensor operations: a routing change can live "
     "at select_experts "
     "level, without touching a kernel"}};
const DispatchProfile kSglang202602{
    "sglang-2026-02",
    "SGLang, February-March 2026",
    "stored text, three forks that agree",
    kTables202602,
    {"R1, R2 and R4 get fp32 logits; R5 scores in the logits' own format",
     "kg*G >= K can never hold with one group and more than one expert per token"}};
const DispatchProfile kSglang202605{"sglang-2026-05",
                                    "SGLang, May-June 2026",
                                    "stored text of commit 000328a8; date inferred",
                                    kTables202605,
                                    {}};
const DispatchProfile kSglang202609{"sglang-2026-09",
                                    "SGLang, about September 2026",
                                    "stored text of a fork; date inferred",
                                    kTables202609,
                                    {}};
const DispatchProfile kSglangCpu{
    "sglang-cpu",
    "SGLang's CPU kernels (AMX), newer builds",
    "stored text",
    kCpuTables,
    {"refused = the kernel has no instantiation for these sizes; upstream raises an error"},
    "cpu"};

}  // namespace carpool
