// The parts of config.json that several families share. Each reads its fields into the config;
// problems stick in the ConfigFields.
#pragma once

#include "models/config_fields.h"
#include "models/model_config.h"

namespace carpool {

// Far above every model there is; below what would let a hostile file ask for absurd amounts of
// memory.
inline constexpr size_t kMaxLayers = 1024;
inline constexpr size_t kMaxRoutedExperts = 4096;
inline constexpr size_t kMaxWidth = size_t{1} << 20;
inline constexpr size_t kMaxVocab = size_t{1} << 24;
inline constexpr size_t kMaxContext = size_t{1} << 28;
inline constexpr size_t kMaxHeads = 4096;

/// num_attention_heads, num_key_value_heads, head_dim, partial_rotary_factor, and the rope over the
/// rotated part. Attention is grouped-query afterwards, the softmax scale head_dim^-0.5.
void ReadGqa(ConfigFields& f, ModelConfig& c);
/// Layers first, first + every, … slide where a file has no layer_types.
struct WindowRule {
  size_t first = 0;
  size_t every = 1;
};
/// sliding_window, in the layers that layer_types calls sliding_attention.
void ReadWindows(ConfigFields& f, ModelConfig& c, const WindowRule& rule);
/// The same where use_sliding_window says so, from layer max_window_layers on.
void ReadQwenWindows(ConfigFields& f, ModelConfig& c);

/// The sizes of latent attention, with rope and softmax scale. `needs_q_lora`: q_lora_rank null is
/// an error.
void ReadMla(ConfigFields& f, ModelConfig& c, bool needs_q_lora);
/// The sizes and the schedule of the DSA indexer.
void ReadIndexer(ConfigFields& f, ModelConfig& c, bool rope_interleave);

/// theta, scaling and its factors, wherever a file keeps them; c.rope.dim is set already.
void ReadRope(ConfigFields& f, ModelConfig& c);

/// n_routed_experts and friends, num_experts_per_tok.
void ReadExperts(ConfigFields& f, ModelConfig& c);
/// n_group, topk_group; a group's score is the sum of its best two, or its best.
void ReadGroups(ConfigFields& f, ModelConfig& c, GroupScore score);
/// Sigmoid, correction bias, groups, renormalised unless the file says no, scaled: GLM and
/// DeepSeek-V3.
void ReadSigmoidGate(ConfigFields& f, ModelConfig& c);
/// Softmax over all experts, renormalised when norm_topk_prob says so (`fallback` when absent).
void ReadSoftmaxGate(ConfigFields& f, ModelConfig& c, bool fallback);
/// n_shared_experts of moe_intermediate_size each.
void ReadSharedExperts(ConfigFields& f, ModelConfig& c);

/// Which layers are sparse: mlp_layer_types, or all but the first first_k_dense_replace.
void ReadFirstDense(ConfigFields& f, ModelConfig& c);
/// Latent attention and the MoE of DeepSeek-V3, which the GLM-5 family shares: sigmoid gate, shared
/// experts, first layers dense.
void ReadLatentSigmoidMoe(ConfigFields& f, ModelConfig& c, bool needs_q_lora);
/// All but mlp_only_layers and those that decoder_sparse_step leaves out.
void ReadSparseStep(ConfigFields& f, ModelConfig& c);

}  // namespace carpool
