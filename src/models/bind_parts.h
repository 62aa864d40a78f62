// The tensors that several families share, under the names Hugging Face transformers gives them.
// `at` is the module that holds them; sizes come from the config; problems stick in the binder.
#pragma once

#include <string>

#include "models/model_weights.h"

namespace carpool {

/// {q,k,v,o}_proj with biases, norms and sinks as the config says; `at` = "….self_attn".
GqaWeights BindGqa(const ModelConfig& c, TensorBinder& b, const std::string& at);
MlaWeights BindMla(const ModelConfig& c, TensorBinder& b, const std::string& at);
/// The indexer of `layer`, if it has its own; `at` = "….self_attn.indexer".
void BindIndexer(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                 LayerWeights& out);

/// What gate, up and down are called.
struct MlpNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};
GatedMlpWeights BindMlp(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t width,
                        const MlpNames& names = {});
/// The routed experts: one tensor per expert and projection, or fused into one [experts, 2 * width,
/// hidden] with the gate's rows first (newer transformers).
std::vector<GatedMlpWeights> BindExperts(const ModelConfig& c, TensorBinder& b,
                                         const std::string& at, const MlpNames& names = {});
/// What the parts of a sparse MLP are called.
struct MoeNames {
  const char* router = "gate";
  const char* experts = "experts";
  const char* shared = "shared_experts";
  MlpNames mlp = {};
};
/// A dense MLP, or router, e_score_correction_bias when the config has one, experts and shared
/// experts; `at` = "….mlp".
void BindMlpOrMoe(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                  LayerWeights& out, const MoeNames& names = {});

/// self_attn of the config's kind and mlp, all under their usual names.
void BindUsualLayer(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                    LayerWeights& out);

}  // namespace carpool
