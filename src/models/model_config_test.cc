#include "models/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weights/test_files.h"

namespace carpool {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

Json Good() {
  return Json::parse(R"({
    "model_type": "glm_moe_dsa", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24,
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1,
    "routed_scaling_factor": 2.5, "norm_topk_prob": true, "first_k_dense_replace": 1, "index_n_heads": 8,
    "index_head_dim": 16, "index_topk": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}, "eos_token_id": [3, 5]})");
}

/// Good() with a JSON merge patch: null removes a field.
Result<ModelConfig> Patched(const char* patch) {
  Json config = Good();
  config.merge_patch(Json::parse(patch));
  return ParseModelConfig(config.dump(), "config.json");
}
ModelConfig Parsed(const char* patch) {
  auto config = Patched(patch);
  EXPECT_TRUE(config) << config.error().message;
  return config ? *config : ModelConfig();
}
std::string Kinds(const ModelConfig& c) {
  std::string out;
  for (auto kind : c.mla.indexer) out += kind == IndexerKind::kFull ? 'F' : 'S';
  return out;
}

TEST(ModelConfig, ReadsEveryField) {
  const auto c = Parsed("{}");
  EXPECT_EQ(c.model_type, "glm_moe_dsa");
  EXPECT_EQ(c.hidden, 64u);
  EXPECT_EQ(c.NumMoeLayers(), 3u);
  EXPECT_EQ(c.mlp[0], MlpKind::kDense);
  EXPECT_EQ(Kinds(c), "FFFF");
  EXPECT_EQ(c.mla.v_dim, 24u);
  EXPECT_EQ(c.rope.theta, 50000.0);
  EXPECT_TRUE(c.rope_interleave);
  EXPECT_TRUE(c.mla.index_rope_interleave);
  EXPECT_THAT(c.eos_ids, ElementsAre(3, 5));
  EXPECT_EQ(c.gate.num_experts, 16u);
  EXPECT_EQ(c.gate.top_k, 4u);
  EXPECT_EQ(c.gate.activation, GateActivation::kSigmoid);
  EXPECT_TRUE(c.gate.has_bias);
  EXPECT_EQ(c.gate.renormalize, Renormalize::kDivideBySum);
  EXPECT_EQ(c.gate.scale, 2.5f);
  EXPECT_EQ(c.mla.latent_norm_eps, 1e-6f);
}

TEST(ModelConfig, OldAndNewWaysToSayTheSame) {
  EXPECT_EQ(Parsed(R"({"rope_parameters": null, "rope_theta": 8e6})").rope.theta, 8e6);
  EXPECT_EQ(
      Parsed(R"({"rope_parameters": null, "rope_scaling": {"type": "default"}, "rope_theta": 7})")
          .rope.theta,
      7);
  EXPECT_EQ(Parsed(R"({"rope_parameters": null})").rope.theta, 10000);
  EXPECT_EQ(Parsed(R"({"n_routed_experts": null, "num_local_experts": 8})").gate.num_experts, 8u);
  EXPECT_EQ(Parsed(R"({"n_routed_experts": null, "num_experts": 8})").gate.num_experts, 8u);
  EXPECT_EQ(Parsed(R"({"n_group": 0, "topk_group": 0})").gate.num_groups, 1u);
  EXPECT_EQ(Parsed(R"({"n_group": null})").gate.groups_kept, 1u);
  EXPECT_THAT(Parsed(R"({"eos_token_id": 7})").eos_ids, ElementsAre(7));
  EXPECT_EQ(Parsed(R"({"hidden_size": 64.0})").hidden, 64u);
  EXPECT_EQ(Parsed(R"({"model_type": null, "architectures": ["GlmMoeDsaForCausalLM"]})").model_type,
            "glm_moe_dsa");
  EXPECT_EQ(Parsed(R"({"norm_topk_prob": false})").gate.renormalize, Renormalize::kNone);
  EXPECT_EQ(Parsed(R"({"some_future_key": {"deep": [1, 2]}})").hidden, 64u);
  const auto grouped = Parsed(R"({"n_group": 4, "topk_group": 2})");
  EXPECT_EQ(grouped.gate.group_score, GroupScore::kTop2Sum);
  EXPECT_EQ(grouped.gate.groups_kept, 2u);
}

TEST(ModelConfig, TextConfigOfAWrapper) {
  Json wrapped = {{"model_type", "glm5v"}, {"text_config", Good()}};
  const auto c = ParseModelConfig(wrapped.dump(), "config.json");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->hidden, 64u);
}

TEST(ModelConfig, LayerKinds) {
  const auto c = Parsed(R"({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]})");
  EXPECT_EQ(c.NumMoeLayers(), 2u);
  EXPECT_EQ(c.mlp[3], MlpKind::kDense);
  EXPECT_EQ(Kinds(Parsed(R"({"index_topk_freq": 2, "index_skip_topk_offset": 2})")), "FFSF");
  EXPECT_EQ(Kinds(Parsed(R"({"index_topk_freq": 2})")), "FFSF");
  EXPECT_EQ(Kinds(Parsed(R"({"index_topk_pattern": "FSSF"})")), "FSSF");
  EXPECT_EQ(Kinds(Parsed(R"({"indexer_types": ["full", "shared", "full", "shared"]})")), "FSFS");
  EXPECT_EQ(Kinds(Parsed(R"({"num_nextn_predict_layers": 1, "index_topk_pattern": "FSSFF"})")),
            "FSSF");
  // GLM-5.2: full at 0, 1, 2, 6, 10, …, 74.
  const auto glm52 = Parsed(
      R"({"num_hidden_layers": 78, "index_topk_freq": 4, "index_skip_topk_offset": 3, "index_topk_pattern": null})");
  size_t full = 0;
  for (size_t i = 0; i < 78; ++i) {
    const bool expected = i < 2 || i % 4 == 2;
    EXPECT_EQ(glm52.mla.indexer[i] == IndexerKind::kFull, expected) << i;
    full += expected;
  }
  EXPECT_EQ(full, 21u);
}

struct Bad {
  const char* patch;
  const char* message;
};
void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.patch; }
class ModelConfigBad : public ::testing::TestWithParam<Bad> {};

TEST_P(ModelConfigBad, SaysWhatWasWantedAndGot) {
  const auto config = Patched(GetParam().patch);
  ASSERT_FALSE(config);
  const std::string& message = config.error().message;
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("config.json"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 400u);
}

INSTANTIATE_TEST_SUITE_P(
    Numbers, ModelConfigBad,
    ::testing::Values(
        Bad{R"({"hidden_size": 0})", "hidden_size: wanted a whole number from 1 to 1048576, got 0"},
        Bad{R"({"hidden_size": null})",
            "hidden_size: wanted a whole number from 1 to 1048576, got nothing"},
        Bad{R"({"hidden_size": "64"})", "got \"64\""}, Bad{R"({"hidden_size": true})", "got true"},
        Bad{R"({"hidden_size": 64.5})", "got 64.5"},
        Bad{R"({"hidden_size": [64]})", "got a list of 1"},
        Bad{R"({"hidden_size": {"a": 1}})", "got an object"},
        Bad{R"({"hidden_size": 1e300})", "hidden_size"},
        Bad{R"({"hidden_size": "a\nb\u0007"})", "hidden_size"},
        Bad{R"({"num_hidden_layers": -1})",
            "num_hidden_layers: wanted a whole number from 1 to 1024, got -1"},
        Bad{R"({"num_hidden_layers": 1000000000})", "num_hidden_layers"},
        Bad{R"({"n_routed_experts": 2147483648})",
            "n_routed_experts: wanted a whole number from 1 to 4096"},
        Bad{R"({"n_routed_experts": 18446744073709551615})", "n_routed_experts"},
        Bad{R"({"vocab_size": 0})", "vocab_size"},
        Bad{R"({"vocab_size": 99999999999})", "vocab_size"},
        Bad{R"({"num_experts_per_tok": 17})",
            "num_experts_per_tok: wanted a whole number from 1 to 16, got 17"},
        Bad{R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
        Bad{R"({"n_group": 3})", "n_group: wanted a divisor of the 16 experts, got 3"},
        Bad{R"({"n_group": 16, "topk_group": 16})",
            "n_group: wanted groups of at least two experts"},
        Bad{R"({"n_group": 4, "topk_group": 5})",
            "topk_group: wanted a whole number from 0 to 4, got 5"},
        Bad{R"({"n_group": 8, "topk_group": 1})", "num_experts_per_tok: wanted at most 2"},
        Bad{R"({"routed_scaling_factor": 0})", "routed_scaling_factor"},
        Bad{R"({"routed_scaling_factor": -2.5})", "routed_scaling_factor"},
        Bad{R"({"scoring_func": "softmax"})", "scoring_func: wanted sigmoid, got 'softmax'"},
        Bad{R"({"topk_method": "greedy"})", "topk_method: wanted noaux_tc"},
        Bad{R"({"norm_topk_prob": 1})", "norm_topk_prob: wanted true or false, got 1"},
        Bad{R"({"rope_parameters": {"rope_theta": 0}})", "rope_theta: wanted a number from 1 to"},
        Bad{R"({"rope_parameters": {"rope_theta": -10000.0}})", "rope_theta"},
        Bad{R"({"rope_parameters": {"rope_theta": "x"}})", "rope_theta"},
        Bad{R"({"rope_parameters": null, "rope_theta": 0})", "rope_theta"},
        Bad{R"({"rope_parameters": {"rope_type": "yarn"}})",
            "rope_parameters: factor: wanted a number"},
        Bad{R"({"rope_scaling": {"type": "dynamic", "factor": 2}})",
            "rope_type: wanted default, linear, yarn or llama3, got 'dynamic'"},
        Bad{R"({"rope_scaling": {"type": "llama3", "factor": 2, "high_freq_factor": 0.5}})",
            "high_freq_factor: wanted more than low_freq_factor 1, got 0.5"},
        Bad{R"({"rope_scaling": "yarn"})", "rope_scaling: wanted an object or null"},
        Bad{R"({"qk_rope_head_dim": 7})", "qk_rope_head_dim: wanted an even number"},
        Bad{R"({"qk_rope_head_dim": 18})",
            "index_head_dim: wanted at least qk_rope_head_dim 18, got 16"},
        Bad{R"({"qk_head_dim": 25})", "qk_head_dim: wanted 24"},
        Bad{R"({"num_key_value_heads": 2})", "num_key_value_heads: wanted 4"},
        Bad{R"({"q_lora_rank": 0})", "q_lora_rank"}, Bad{R"({"kv_lora_rank": -5})", "kv_lora_rank"},
        Bad{R"({"index_topk": 0})", "index_topk"},
        Bad{R"({"max_position_embeddings": 0})", "max_position_embeddings"},
        Bad{R"({"rms_norm_eps": 0})", "rms_norm_eps"},
        Bad{R"({"rms_norm_eps": -1})", "rms_norm_eps"},
        Bad{R"({"first_k_dense_replace": 5})",
            "first_k_dense_replace: wanted a whole number from 0 to 4"},
        Bad{R"({"mlp_layer_types": ["dense"]})", "mlp_layer_types: wanted 4 strings"},
        Bad{R"({"mlp_layer_types": ["dense", "sparse", "sparse", 3]})", "mlp_layer_types"},
        Bad{R"({"indexer_types": ["full", "shared", "half", "full"]})", "indexer_types"},
        Bad{R"({"indexer_types": ["shared", "full", "full", "full"]})",
            "a full indexer in layer 0"},
        Bad{R"({"index_topk_pattern": "FS"})", "index_topk_pattern: wanted 4 letters"},
        Bad{R"({"index_topk_pattern": "FXSF"})", "index_topk_pattern"},
        Bad{R"({"eos_token_id": 320})",
            "eos_token_id: wanted an id or a list of up to 1024 ids from 0 to 319, got 320"},
        Bad{R"({"eos_token_id": [1, -1]})", "eos_token_id"},
        Bad{R"({"eos_token_id": ["</s>"]})", "eos_token_id"},
        Bad{R"({"hidden_act": "gelu"})", "hidden_act: wanted silu, got 'gelu'"},
        Bad{R"({"model_type": "gpt2"})",
            "model_type 'gpt2' is not supported; supported: glm_moe_dsa"},
        Bad{R"({"model_type": "a\nb"})", "model_type 'a\\x0ab'"},
        Bad{R"({"model_type": "glm5_next"})", "GLM-5.3-Flash is another architecture"},
        Bad{R"({"model_type": null})", "model_type: wanted one of glm_moe_dsa, glm4_moe, "},
        Bad{R"({"model_type": null, "architectures": ["GPT2LMHeadModel"]})",
            "'GPT2LMHeadModel' is not supported"}));

std::string ErrorOf(const std::string& text) {
  const auto config = ParseModelConfig(text, "config.json");
  return config ? "no error" : config.error().message;
}

TEST(ModelConfig, BrokenText) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("wanted a JSON object"));
  EXPECT_THAT(ErrorOf(R"({"model_type": NaN})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(R"({"hidden_size": 1e400})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(R"({"a": 1, "a": 2})"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("deeper than"));
}

TEST(ModelConfig, AMillionEosIds) {
  Json config = Good();
  config["eos_token_id"] = std::vector<int>(1'000'000, 1);
  EXPECT_THAT(ErrorOf(config.dump()), HasSubstr("got a list of 1000000"));
}

TEST(ModelConfig, FilesOfADirectory) {
  const TempDir dir;
  const auto error = [&](const std::string& path) {
    const auto config = LoadModelConfig(path);
    return config ? std::string("no error") : config.error().message;
  };
  EXPECT_THAT(error(dir.path() + "/none"), HasSubstr("no such directory"));
  EXPECT_THAT(error(dir.Write("f", "")), HasSubstr("wanted a checkpoint directory"));
  EXPECT_THAT(error(dir.path()), HasSubstr("config.json: no such file"));
  dir.Write("config.json", Good().dump());
  EXPECT_EQ(error(dir.path()), "no error");
  dir.Write("generation_config.json",
            R"({"eos_token_id": [9, 11], "temperature": 0.8, "top_p": 0.95})");
  const auto config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config);
  EXPECT_THAT(config->eos_ids, ElementsAre(9, 11));
  EXPECT_EQ(config->default_temperature, 0.8f);
  EXPECT_EQ(config->default_top_p, 0.95f);
  dir.Write("generation_config.json", R"({"eos_token_id": 320})");
  EXPECT_THAT(error(dir.path()), HasSubstr("generation_config.json: eos_token_id"));
  dir.Write("generation_config.json", R"({"temperature": -1})");
  EXPECT_THAT(error(dir.path()), HasSubstr("generation_config.json: temperature"));
  dir.Write("generation_config.json", R"({"top_p": 0})");
  EXPECT_THAT(error(dir.path()), HasSubstr("generation_config.json: top_p"));
}

}  // namespace
}  // namespace carpool
