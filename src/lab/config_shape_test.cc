#include "lab/config_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carpool/source_dir.h"

namespace carpool {
namespace {

using ::testing::HasSubstr;

/// What the planner uses of two shapes is the same within a thousandth.
void ExpectSame(const MoeShape& config, const MoeShape& preset) {
  EXPECT_EQ(config.hidden, preset.hidden);
  EXPECT_EQ(config.width, preset.width);
  EXPECT_EQ(config.shared_width, preset.shared_width);
  EXPECT_EQ(config.gate.num_experts, preset.gate.num_experts);
  EXPECT_EQ(config.gate.top_k, preset.gate.top_k);
  EXPECT_EQ(config.gate.activation, preset.gate.activation);
  EXPECT_EQ(config.moe_layers, preset.moe_layers);
  EXPECT_NEAR(config.dense_parameters, preset.dense_parameters, 1e-3 * preset.dense_parameters);
  EXPECT_EQ(config.kv_bytes_per_token, preset.kv_bytes_per_token);
  EXPECT_EQ(config.index_bytes_per_token, preset.index_bytes_per_token);
  EXPECT_EQ(config.sparse_topk, preset.sparse_topk);
}

constexpr const char* kGlm5 = R"({"model_type": "glm_moe_dsa", "vocab_size": 154880,
  "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
  "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 64,
  "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
  "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
  "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
  "topk_group": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
  "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1,
  "quantization_config": {"quant_algo": "NVFP4"}})";

TEST(ConfigShape, PresetsAreWhatTheConfigsSay) {
  const auto glm = ShapeFromConfigText(kGlm5, "glm");
  ASSERT_TRUE(glm) << glm.error().message;
  ExpectSame(glm->shape, *FindMoeShape("glm-5"));
  EXPECT_EQ(glm->expert_format, WeightFormat::kNVFP4);
  const auto qwen = ShapeFromConfigText(
      R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
          "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
          "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
          "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
          "mlp_only_layers": []})",
      "qwen");
  ASSERT_TRUE(qwen) << qwen.error().message;
  ExpectSame(qwen->shape, *FindMoeShape("qwen3-30b"));
  EXPECT_EQ(qwen->expert_format, WeightFormat::kBF16);
  const auto deepseek = ShapeFromConfigText(
      R"({"model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
          "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
          "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
          "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
          "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
          "topk_group": 4, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
          "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1,
          "quantization_config": {"quant_method": "fp8"}})",
      "deepseek");
  ASSERT_TRUE(deepseek) << deepseek.error().message;
  ExpectSame(deepseek->shape, *FindMoeShape("deepseek-v3"));
  EXPECT_EQ(deepseek->expert_format, WeightFormat::kFP8);
}

TEST(ConfigShape, ReadsADirectory) {
  const auto bundled = ShapeFromConfig(CARPOOL_SOURCE_DIR "/models/books-20m");
  ASSERT_TRUE(bundled) << bundled.error().message;
  ExpectSame(bundled->shape, *FindMoeShape("demo"));
}

TEST(ConfigShape, LayersWithExperts) {
  const auto layers = [](const char* more) {
    const auto shape = ShapeFromConfigText(
        fmt::format(R"({{"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 12, "num_attention_heads": 4, "num_experts": 8,
            "num_experts_per_tok": 2{}}})",
                    more),
        "test");
    EXPECT_TRUE(shape) << shape.error().message;
    return shape ? shape->shape.moe_layers : 0;
  };
  EXPECT_EQ(layers(""), 12u);
  EXPECT_EQ(layers(R"(, "interleave_moe_layer_step": 2)"), 6u);
  EXPECT_EQ(layers(R"(, "mlp_only_layers": [0, 5])"), 10u);
  EXPECT_EQ(layers(R"(, "first_k_dense_replace": 3)"), 9u);
  EXPECT_EQ(layers(R"(, "mlp_layer_types": ["dense", "sparse", "sparse"])"), 2u);
}

TEST(ConfigShape, BadInput) {
  const auto error = [](const char* text) {
    const auto shape = ShapeFromConfigText(text, "here.json");
    return shape ? std::string("no error") : shape.error().message;
  };
  EXPECT_THAT(error("[1]"), HasSubstr("here.json"));
  EXPECT_THAT(error(R"({"hidden_size": 64})"), HasSubstr("n_routed_experts"));
  EXPECT_THAT(error(R"({"num_experts": 8, "num_experts_per_tok": 2})"), HasSubstr("hidden_size"));
  EXPECT_THAT(error(R"({"num_experts": 8, "num_experts_per_tok": 2, "hidden_size": "big"})"),
              HasSubstr("wanted a whole number"));
  EXPECT_THAT(error(R"({"num_experts": 8, "num_experts_per_tok": 2, "hidden_size": 64,
                        "layer_types": ["linear_attention"]})"),
              HasSubstr("linear_attention"));
  EXPECT_EQ(ShapeFromConfig("/no/such/config.json").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace carpool
