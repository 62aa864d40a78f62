// Test support: a tiny model of every family with seeded weights, under the names and shapes its
// files have, and the logits that were computed for it elsewhere.
#pragma once

#include <optional>

#include "models/golden_weights_testing.h"

namespace carpool::testing {

/// Of the last row, over tokens 0 … S-1 of GoldenTokens.
struct GoldenLogits {
  std::vector<double> first;  // of ids 0 … 5
  double sum;
  int argmax;
  double squares;  // over all rows
};

/// Writes tensors of one family; every name is salted before it is hashed.
class TinyTensors {
 public:
  TinyTensors(GoldenCheckpoint& checkpoint, std::string salt)
      : checkpoint_(checkpoint), salt_(std::move(salt)) {}

  void Add(const std::string& name, const std::vector<size_t>& shape) {
    checkpoint_.Add(name, shape, salt_);
  }
  void Ends(bool tied = false) {
    Add("model.embed_tokens.weight", {320, 64});
    if (!tied) Add("lm_head.weight", {320, 64});
    Add("model.norm.weight", {64});
  }
  void Norms(const std::string& layer) {
    Add(layer + "input_layernorm.weight", {64});
    Add(layer + "post_attention_layernorm.weight", {64});
  }
  struct Gqa {
    size_t kv = 2, dim = 16;
    bool qkv_bias = false, o_bias = false;
    size_t q_norm = 0, k_norm = 0;
  };
  void Attention(const std::string& layer, const Gqa& g) {
    const std::string at = layer + "self_attn.";
    const std::pair<const char*, size_t> parts[] = {
        {"q_proj", 4 * g.dim}, {"k_proj", g.kv * g.dim}, {"v_proj", g.kv * g.dim}};
    for (const auto& [part, rows] : parts) {
      Add(at + part + ".weight", {rows, 64});
      if (g.qkv_bias) Add(at + part + ".bias", {rows});
    }
    Add(at + "o_proj.weight", {64, 4 * g.dim});
    if (g.o_bias) Add(at + "o_proj.bias", {64});
    if (g.q_norm > 0) Add(at + "q_norm.weight", {g.q_norm});
    if (g.k_norm > 0) Add(at + "k_norm.weight", {g.k_norm});
  }
  void Mla(const std::string& layer, bool q_lora, bool indexer = false) {
    const std::string at = layer + "self_attn.";
    if (q_lora) {
      Add(at + "q_a_proj.weight", {32, 64});
      Add(at + "q_a_layernorm.weight", {32});
      Add(at + "q_b_proj.weight", {4 * 24, 32});
    } else {
      Add(at + "q_proj.weight", {4 * 24, 64});
    }
    Add(at + "kv_a_proj_with_mqa.weight", {40, 64});
    Add(at + "kv_a_layernorm.weight", {32});
    Add(at + "kv_b_proj.weight", {4 * 40, 32});
    Add(at + "o_proj.weight", {64, 4 * 24});
    if (!indexer) return;
    Add(at + "indexer.wq_b.weight", {8 * 16, 32});
    Add(at + "indexer.wk.weight", {16, 64});
    Add(at + "indexer.k_norm.weight", {16});
    Add(at + "indexer.k_norm.bias", {16});
    Add(at + "indexer.weights_proj.weight", {8, 64});
  }
  void Mlp(const std::string& at, size_t width, const char* gate = "gate_proj",
           const char* up = "up_proj", const char* down = "down_proj") {
    Add(at + gate + ".weight", {width, 64});
    Add(at + up + ".weight", {width, 64});
    Add(at + down + ".weight", {64, width});
  }
  void Moe(const std::string& layer, bool correction_bias, size_t shared) {
    Add(layer + "mlp.gate.weight", {16, 64});
    if (correction_bias) Add(layer + "mlp.gate.e_score_correction_bias", {16});
    for (int e = 0; e < 16; ++e) Mlp(layer + "mlp.experts." + std::to_string(e) + ".", 32);
    if (shared > 0) Mlp(layer + "mlp.shared_experts.", shared);
  }

 private:
  GoldenCheckpoint& checkpoint_;
  std::string salt_;
};

struct TinyFamily {
  const char* name;
  const char* config;  // without what all have
  const char* salt;
  void (*layer)(TinyTensors& t, const std::string& at, int index);
  size_t tokens = 24;
  std::optional<GoldenLogits> golden = {};
  bool tied = false;

  std::string ConfigJson() const {
    return std::string(R"({"vocab_size":320,"hidden_size":64,"num_hidden_layers":4,)"
                       R"("num_attention_heads":4,"max_position_embeddings":512,)"
                       R"("hidden_act":"silu","eos_token_id":319,)") +
           config + "}";
  }
  void Write(GoldenCheckpoint& checkpoint) const {
    TinyTensors t(checkpoint, salt);
    t.Ends(tied);
    for (int i = 0; i < 4; ++i) {
      const std::string at = "model.layers." + std::to_string(i) + ".";
      t.Norms(at);
      layer(t, at, i);
    }
    checkpoint.Write(ConfigJson());
  }
};

inline std::vector<TinyFamily> TinyFamilies() {
  static constexpr const char* kMla =
      R"("num_key_value_heads":4,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,)"
      R"("v_head_dim":24,"intermediate_size":128,"moe_intermediate_size":32,)"
      R"("first_k_dense_replace":1,"n_routed_experts":16,"num_experts_per_tok":4,)";
  static const std::string lite =
      std::string(kMla) +
      R"("model_type":"glm4_moe_lite","q_lora_rank":32,"n_shared_experts":1,"norm_topk_prob":true,
         "routed_scaling_factor":1.8,"rms_norm_eps":1e-5,"rope_theta":10000.0)";
  static const std::string v3_body =
      std::string(kMla) +
      R"("q_lora_rank":32,"n_shared_experts":1,"n_group":4,"topk_group":2,"norm_topk_prob":true,
         "routed_scaling_factor":2.5,"rms_norm_eps":1e-6,"rope_theta":10000.0,
         "rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":64,
         "beta_fast":32,"beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0},)";
  static const std::string v3 = v3_body + R"("model_type":"deepseek_v3")";
  static const std::string v32 =
      v3_body +
      R"("model_type":"deepseek_v32","index_n_heads":8,"index_head_dim":16,"index_topk":8)";
  static const std::string v2 =
      std::string(kMla) +
      R"("model_type":"deepseek_v2","q_lora_rank":null,"n_shared_experts":2,"topk_method":"greedy",
         "scoring_func":"softmax","norm_topk_prob":false,"routed_scaling_factor":1.0,
         "rms_norm_eps":1e-6,"rope_theta":10000.0,
         "rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":64,
         "beta_fast":32,"beta_slow":1,"mscale":0.707,"mscale_all_dim":0.707})";
  return {
      {"glm4_moe",
       R"("model_type":"glm4_moe","num_key_value_heads":2,"head_dim":16,"partial_rotary_factor":0.5,
          "attention_bias":true,"use_qk_norm":true,"intermediate_size":128,
          "moe_intermediate_size":32,"n_routed_experts":16,"num_experts_per_tok":4,
          "n_shared_experts":1,"first_k_dense_replace":1,"n_group":1,"topk_group":1,
          "routed_scaling_factor":1.5,"norm_topk_prob":true,"rms_norm_eps":1e-5,
          "rope_theta":10000.0)",
       "",
       [](TinyTensors& t, const std::string& at, int i) {
         t.Attention(at, {.qkv_bias = true, .q_norm = 16, .k_norm = 16});
         if (i == 0) return t.Mlp(at + "mlp.", 128);
         t.Moe(at, true, 32);
       },
       24,
       GoldenLogits{
           {0.42980, 2.30791, 0.74863, -0.22789, -0.11478, 0.22051}, 0.5652, 109, 7799.656}},
      {"glm4_moe_lite", lite.c_str(), "",
       [](TinyTensors& t, const std::string& at, int i) {
         t.Mla(at, true);
         if (i == 0) return t.Mlp(at + "mlp.", 128);
         t.Moe(at, true, 32);
       }},
      {"deepseek_v2", v2.c_str(), "#1",
       [](TinyTensors& t, const std::string& at, int i) {
         t.Mla(at, false);
         if (i == 0) return t.Mlp(at + "mlp.", 128);
         t.Moe(at, false, 64);
       },
       96,
       GoldenLogits{
           {0.68537, -0.32844, -0.33450, 0.44056, -0.08981, 1.02127}, 5.0327, 113, 30983.521}},
      {"deepseek_v3", v3.c_str(), "",
       [](TinyTensors& t, const std::string& at, int i) {
         t.Mla(at, true);
         if (i == 0) return t.Mlp(at + "mlp.", 128);
         t.Moe(at, true, 32);
       },
       96,
       GoldenLogits{
           {0.02830, 0.83791, 0.21184, -0.67980, 1.09664, 1.46994}, -1.3429, 292, 30182.715}},
      {"deepseek_v32", v32.c_str(), "",
       [](TinyTensors& t, const std::string& at, int i) {
         t.Mla(at, true, true);
         if (i == 0) return t.Mlp(at + "mlp.", 128);
         t.Moe(at, true, 32);
       }},
      {"qwen3_moe",
       R"("model_type":"qwen3_moe","num_key_value_heads":2,"head_dim":32,"intermediate_size":128,
          "moe_intermediate_size":32,"num_experts":16,"num_experts_per_tok":4,
          "norm_topk_prob":true,"rms_norm_eps":1e-6,"rope_theta":10000.0)",
       "#0",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {.dim = 32, .q_norm = 32, .k_norm = 32});
         t.Moe(at, false, 0);
       },
       24,
       GoldenLogits{
           {0.87393, -1.30061, 0.20257, -0.47758, -0.08591, 0.37772}, 3.5742, 170, 7815.449}},
      {"qwen2_moe",
       R"("model_type":"qwen2_moe","num_key_value_heads":2,"intermediate_size":128,
          "moe_intermediate_size":32,"shared_expert_intermediate_size":48,"num_experts":16,
          "num_experts_per_tok":4,"norm_topk_prob":false,"rms_norm_eps":1e-6,
          "rope_theta":10000.0)",
       "#0",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {.qkv_bias = true});
         t.Moe(at, false, 0);
         t.Mlp(at + "mlp.shared_expert.", 48);
         t.Add(at + "mlp.shared_expert_gate.weight", {1, 64});
       },
       24,
       GoldenLogits{
           {0.88628, 0.22758, 1.88558, 0.90180, 0.92659, -0.41014}, -1.5962, 170, 7171.034}},
      {"olmoe",
       R"("model_type":"olmoe","num_key_value_heads":4,"intermediate_size":32,"num_experts":16,
          "num_experts_per_tok":4,"norm_topk_prob":false,"clip_qkv":2.0,"rms_norm_eps":1e-5,
          "rope_theta":10000.0)",
       "#0",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {.kv = 4, .q_norm = 64, .k_norm = 64});
         t.Moe(at, false, 0);
       },
       24,
       GoldenLogits{
           {-0.02560, -1.34765, 2.80808, 0.99018, 1.84944, -0.15142}, -3.3577, 2, 7572.413}},
      {"mixtral",
       R"("model_type":"mixtral","num_key_value_heads":2,"intermediate_size":96,
          "num_local_experts":8,"num_experts_per_tok":2,"sliding_window":null,"rms_norm_eps":1e-5,
          "rope_theta":10000.0)",
       "#0",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {});
         t.Add(at + "block_sparse_moe.gate.weight", {8, 64});
         for (int e = 0; e < 8; ++e) {
           t.Mlp(at + "block_sparse_moe.experts." + std::to_string(e) + ".", 96, "w1", "w3", "w2");
         }
       },
       24,
       GoldenLogits{
           {1.12123, -1.13234, 1.46919, 0.29585, 0.99875, -1.60805}, 18.4593, 272, 7571.137}},
      {"gpt_oss",
       R"("model_type":"gpt_oss","num_key_value_heads":2,"head_dim":16,"intermediate_size":64,
          "num_local_experts":8,"num_experts_per_tok":2,"sliding_window":8,"attention_bias":true,
          "rms_norm_eps":1e-5,"rope_theta":150000.0,
          "rope_scaling":{"rope_type":"yarn","factor":32.0,"beta_fast":32.0,"beta_slow":1.0,
          "truncate":false,"original_max_position_embeddings":16})",
       "",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {.qkv_bias = true, .o_bias = true});
         t.Add(at + "self_attn.sinks", {4});
         t.Add(at + "mlp.router.weight", {8, 64});
         t.Add(at + "mlp.router.bias", {8});
         t.Add(at + "mlp.experts.gate_up_proj", {8, 64, 128});
         t.Add(at + "mlp.experts.gate_up_proj_bias", {8, 128});
         t.Add(at + "mlp.experts.down_proj", {8, 64, 64});
         t.Add(at + "mlp.experts.down_proj_bias", {8, 64});
       }},
      {"llama",
       R"("model_type":"llama","num_key_value_heads":2,"intermediate_size":96,"rms_norm_eps":1e-5,
          "tie_word_embeddings":true,"rope_theta":10000.0,
          "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
          "high_freq_factor":4.0,"original_max_position_embeddings":16})",
       "",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {});
         t.Mlp(at + "mlp.", 96);
       },
       24, std::nullopt, true},
      {"qwen3",
       R"("model_type":"qwen3","num_key_value_heads":2,"head_dim":32,"intermediate_size":96,
          "rms_norm_eps":1e-6,"rope_theta":10000.0)",
       "",
       [](TinyTensors& t, const std::string& at, int) {
         t.Attention(at, {.dim = 32, .q_norm = 32, .k_norm = 32});
         t.Mlp(at + "mlp.", 96);
       }},
  };
}

}  // namespace carpool::testing
