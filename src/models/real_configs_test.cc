// The published configurations of real models, cut to the fields that matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/model_config.h"

namespace carpool {
namespace {

using ::testing::HasSubstr;

ModelConfig Parsed(const std::string& text) {
  auto config = ParseModelConfig(text, "config.json");
  EXPECT_TRUE(config) << config.error().message;
  return config ? *config : ModelConfig();
}

const std::string kDeepseekV3 =
    R"("vocab_size":129280,"hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,
       "num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
       "qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,"moe_intermediate_size":2048,
       "n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"n_group":8,"topk_group":4,
       "norm_topk_prob":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid",
       "topk_method":"noaux_tc","first_k_dense_replace":3,"num_nextn_predict_layers":1,
       "rms_norm_eps":1e-6,"rope_theta":10000,"max_position_embeddings":163840,"hidden_act":"silu",
       "rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,
       "beta_fast":32,"beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0})";

TEST(RealConfigs, DeepseekV3AndV32) {
  const auto c = Parsed("{\"model_type\":\"deepseek_v3\"," + kDeepseekV3 + "}");
  EXPECT_NEAR(c.softmax_scale, 0.1352338, 1e-7);
  EXPECT_EQ(c.rope.attention_factor, 1.0);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_TRUE(c.rope_interleave);
  EXPECT_EQ(c.gate.num_groups, 8u);
  EXPECT_EQ(c.gate.group_score, GroupScore::kTop2Sum);
  EXPECT_EQ(c.NumMoeLayers(), 58u);
  EXPECT_TRUE(c.mla.indexer.empty());
  const auto v32 = Parsed(
      "{\"model_type\":\"deepseek_v32\",\"index_n_heads\":64,\"index_head_dim\":128,"
      "\"index_topk\":2048," +
      kDeepseekV3 + "}");
  EXPECT_EQ(v32.mla.index_heads, 64u);
  EXPECT_FALSE(v32.mla.index_rope_interleave);
  EXPECT_EQ(std::count(v32.mla.indexer.begin(), v32.mla.indexer.end(), IndexerKind::kFull), 61);
}

TEST(RealConfigs, KimiK2InItsMultimodalWrapper) {
  const auto c = Parsed(
      R"({"model_type":"kimi_k25","vision_config":{"hidden_size":1},"text_config":{
          "model_type":"kimi_k2","architectures":["DeepseekV3ForCausalLM"],"vocab_size":163840,
          "hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":64,
          "num_key_value_heads":64,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
          "qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,
          "moe_intermediate_size":2048,"n_routed_experts":384,"n_shared_experts":1,
          "num_experts_per_tok":8,"n_group":1,"topk_group":1,"routed_scaling_factor":2.827,
          "first_k_dense_replace":1,"rms_norm_eps":1e-5,"rope_theta":50000,
          "max_position_embeddings":131072,"rope_scaling":{"type":"yarn","factor":32,
          "original_max_position_embeddings":4096,"mscale":1.0,"mscale_all_dim":1.0}}})");
  EXPECT_EQ(c.model_type, "kimi_k2");
  EXPECT_NEAR(c.softmax_scale, 0.1308608, 1e-7);
  EXPECT_EQ(c.gate.num_experts, 384u);
  EXPECT_EQ(c.NumMoeLayers(), 60u);
}

TEST(RealConfigs, DeepseekV2Lite) {
  const auto c = Parsed(
      R"({"model_type":"deepseek_v2","vocab_size":102400,"hidden_size":2048,"num_hidden_layers":27,
          "num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":null,"kv_lora_rank":512,
          "qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":10944,
          "moe_intermediate_size":1408,"n_routed_experts":64,"n_shared_experts":2,
          "num_experts_per_tok":6,"topk_method":"greedy","scoring_func":"softmax",
          "norm_topk_prob":false,"routed_scaling_factor":1.0,"first_k_dense_replace":1,
          "n_group":1,"topk_group":1,"rms_norm_eps":1e-6,"rope_theta":10000,
          "max_position_embeddings":163840,"rope_scaling":{"type":"yarn","factor":40,
          "original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,"mscale":0.707,
          "mscale_all_dim":0.707}})");
  EXPECT_NEAR(c.softmax_scale, 0.1147214, 1e-7);
  EXPECT_EQ(c.mla.q_lora_rank, 0u);
  EXPECT_EQ(c.shared_width, 2816u);
  EXPECT_EQ(c.gate.activation, GateActivation::kSoftmax);
  EXPECT_EQ(c.gate.renormalize, Renormalize::kNone);
  EXPECT_FALSE(c.gate.has_bias);
}

TEST(RealConfigs, GptOss20b) {
  const auto c = Parsed(
      R"({"model_type":"gpt_oss","vocab_size":201088,"hidden_size":2880,"num_hidden_layers":24,
          "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,
          "num_local_experts":32,"num_experts_per_tok":4,"experts_per_token":4,"swiglu_limit":7.0,
          "attention_bias":true,"sliding_window":128,"rms_norm_eps":1e-5,"rope_theta":150000,
          "max_position_embeddings":131072,"hidden_act":"silu","eos_token_id":200002,
          "rope_scaling":{"rope_type":"yarn","factor":32.0,"beta_fast":32.0,"beta_slow":1.0,
          "original_max_position_embeddings":4096,"truncate":false}})");
  EXPECT_NEAR(c.rope.attention_factor, 1.34657, 1e-5);
  EXPECT_FALSE(c.rope.truncate);
  EXPECT_EQ(c.gqa.window[0], 128u);
  EXPECT_EQ(c.gqa.window[1], 0u);
  EXPECT_TRUE(c.gqa.sinks && c.gqa.o_bias && c.router_bias && c.glu.clamped);
}

TEST(RealConfigs, Glm45Air) {
  const auto c = Parsed(
      R"({"model_type":"glm4_moe","vocab_size":151552,"hidden_size":4096,"num_hidden_layers":46,
          "num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,
          "partial_rotary_factor":0.5,"attention_bias":true,"use_qk_norm":false,
          "intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":128,
          "n_shared_experts":1,"num_experts_per_tok":8,"n_group":1,"topk_group":1,
          "norm_topk_prob":true,"routed_scaling_factor":1.0,"first_k_dense_replace":1,
          "num_nextn_predict_layers":1,"rms_norm_eps":1e-5,"rope_theta":1000000,
          "rope_scaling":null,"max_position_embeddings":131072,
          "eos_token_id":[151329,151336,151338]})");
  EXPECT_EQ(c.rope.dim, 64u);
  EXPECT_EQ(c.gqa.qk_norm, QkNorm::kNone);
  EXPECT_TRUE(c.gqa.qkv_bias);
  EXPECT_FALSE(c.gqa.o_bias);
  EXPECT_EQ(c.NumMoeLayers(), 45u);
}

TEST(RealConfigs, Qwen3And2Moe) {
  const auto qwen3 = Parsed(
      R"({"model_type":"qwen3_moe","vocab_size":151936,"hidden_size":2048,"num_hidden_layers":48,
          "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"intermediate_size":6144,
          "moe_intermediate_size":768,"num_experts":128,"num_experts_per_tok":8,
          "norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],"rms_norm_eps":1e-6,
          "rope_theta":1000000.0,"sliding_window":4096,"use_sliding_window":false,
          "max_window_layers":48,"max_position_embeddings":40960,"attention_bias":false})");
  EXPECT_EQ(qwen3.gqa.qk_norm, QkNorm::kHead);
  EXPECT_TRUE(qwen3.gqa.window.empty());
  EXPECT_EQ(qwen3.gate.renormalize, Renormalize::kDivideBySum);
  EXPECT_EQ(qwen3.NumMoeLayers(), 48u);
  const auto qwen2 = Parsed(
      R"({"model_type":"qwen2_moe","vocab_size":151936,"hidden_size":2048,"num_hidden_layers":24,
          "num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":5632,
          "moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"num_experts":60,
          "num_experts_per_tok":4,"norm_topk_prob":false,"decoder_sparse_step":2,
          "rms_norm_eps":1e-6,"rope_theta":1000000.0,"sliding_window":32768,
          "use_sliding_window":true,"max_window_layers":21,"max_position_embeddings":8192})");
  EXPECT_EQ(qwen2.gqa.head_dim, 128u);
  EXPECT_TRUE(qwen2.shared_gate && qwen2.gqa.qkv_bias);
  EXPECT_EQ(qwen2.NumMoeLayers(), 12u);
  EXPECT_EQ(qwen2.mlp[0], MlpKind::kDense);
  EXPECT_EQ(qwen2.gqa.window[20], 0u);
  EXPECT_EQ(qwen2.gqa.window[21], 32768u);
}

struct Refused {
  const char* text;
  const char* message;
};
TEST(RealConfigs, FamiliesRefuseWhatTheyDoNotHave) {
  const std::string dense =
      R"("vocab_size":320,"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
         "intermediate_size":96,"max_position_embeddings":512,)";
  const Refused cases[] = {
      {R"("model_type":"llama","num_key_value_heads":3)",
       "num_key_value_heads: wanted a divisor of num_attention_heads 4, got 3"},
      {R"("model_type":"llama","num_key_value_heads":8)", "num_key_value_heads: wanted a whole"},
      {R"("model_type":"llama","head_dim":15)", "head_dim: wanted an even number"},
      {R"("model_type":"llama","hidden_act":"gelu")", "hidden_act: wanted silu, got 'gelu'"},
      {R"("model_type":"llama","rope_scaling":{"rope_type":"longrope","factor":2})",
       "rope_type: wanted default, linear, yarn or llama3, got 'longrope'"},
      {R"("model_type":"mixtral","num_local_experts":8,"num_experts_per_tok":9)",
       "num_experts_per_tok: wanted a whole number from 1 to 8, got 9"},
      {R"("model_type":"mixtral","num_local_experts":8,"num_experts_per_tok":2,
          "sliding_window":64,"layer_types":["full_attention"])",
       "layer_types: wanted 2 strings"},
      {R"("model_type":"mixtral","num_local_experts":8,"num_experts_per_tok":2,
          "sliding_window":64,"layer_types":["full_attention","chunked_attention"])",
       "layer_types: wanted 2 strings"},
      {R"("model_type":"qwen3_moe","moe_intermediate_size":32,"num_experts":8,
          "num_experts_per_tok":2,"mlp_only_layers":[2])",
       "mlp_only_layers: wanted a list of layer numbers below 2, got 2"},
      {R"("model_type":"deepseek_v2","kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,
          "v_head_dim":24,"moe_intermediate_size":32,"n_routed_experts":8,"num_experts_per_tok":2,
          "topk_method":"noaux_tc")",
       "topk_method: wanted group_limited_greedy, got 'noaux_tc'"},
  };
  for (const Refused& bad : cases) {
    const auto config = ParseModelConfig("{" + dense + bad.text + "}", "config.json");
    ASSERT_FALSE(config) << bad.text;
    EXPECT_THAT(config.error().message, HasSubstr(bad.message));
    EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace carpool
