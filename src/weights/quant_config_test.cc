#include "weights/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace carpool {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

TEST(GlobMatch, LikeTheShell) {
  EXPECT_TRUE(GlobMatch("model.layers.*.self_attn*", "model.layers.12.self_attn.q_a_proj"));
  EXPECT_TRUE(GlobMatch("*", ""));
  EXPECT_TRUE(GlobMatch("a?c", "abc"));
  EXPECT_TRUE(GlobMatch("l[0-9a].x", "l7.x"));
  EXPECT_FALSE(GlobMatch("l[!0-9].x", "l7.x"));
  EXPECT_TRUE(GlobMatch("[]]", "]"));
  EXPECT_TRUE(GlobMatch("a[", "a["));
  EXPECT_FALSE(GlobMatch("lm_head", "lm_head2"));
  EXPECT_FALSE(GlobMatch("a*b*c", "axxbxx"));
  EXPECT_FALSE(GlobMatch("", "a"));
  // The classic that takes forever with naive backtracking.
  std::string stars;
  for (int i = 0; i < 2000; ++i) stars += "a*";
  EXPECT_FALSE(GlobMatch(stars + "b", std::string(4000, 'a')));
}

QuantConfig Load(std::string_view file, std::string_view text) {
  const TempDir dir;
  dir.Write(std::string(file), text);
  auto config = QuantConfig::Load(dir.path());
  EXPECT_TRUE(config) << config.error().message;
  return config ? *config : QuantConfig();
}
std::string QuantConfigError(std::string_view text) {
  const TempDir dir;
  dir.Write("hf_quant_config.json", text);
  const auto config = QuantConfig::Load(dir.path());
  return config ? "no error" : config.error().message;
}

TEST(QuantConfig, ModelOpt) {
  const auto c = Load(
      "hf_quant_config.json",
      R"({"quantization":{"quant_algo":"NVFP4","exclude_modules":["lm_head","model.layers.*.mlp.gate"]}})");
  EXPECT_EQ(c.method(), "NVFP4");
  EXPECT_FALSE(c.SaysQuantized("lm_head"));
  EXPECT_FALSE(c.SaysQuantized("model.layers.3.mlp.gate"));
  EXPECT_TRUE(c.SaysQuantized("model.layers.3.mlp.gate_proj"));
}

TEST(QuantConfig, CompressedTensorsTargetsAndRegexes) {
  const auto c =
      Load("config.json",
           R"({"quantization_config":{"quant_method":"compressed-tensors","config_groups":{
      "group_0":{"targets":["re:.*experts\\.\\d+\\..*"]}},"ignore":["re:.*down_proj$"]}})");
  EXPECT_TRUE(c.SaysQuantized("model.layers.1.mlp.experts.7.up_proj"));
  EXPECT_FALSE(c.SaysQuantized("model.layers.1.mlp.experts.7.down_proj"));
  EXPECT_FALSE(c.SaysQuantized("model.layers.1.self_attn.o_proj"));
  const auto all =
      Load("config.json",
           R"({"quantization_config":{"quant_method":"compressed-tensors","config_groups":{
      "group_0":{"targets":["Linear"]}},"ignore":["lm_head"]}})");
  EXPECT_TRUE(all.SaysQuantized("anything"));
}

TEST(QuantConfig, Fp8NamesModulesAndWhatLiesBelow) {
  const auto c = Load(
      "config.json",
      R"({"quantization_config":{"quant_method":"fp8","modules_to_not_convert":["lm_head","mlp.gate","model.layers.0"]}})");
  EXPECT_FALSE(c.SaysQuantized("model.layers.0.self_attn.o_proj"));
  EXPECT_TRUE(c.SaysQuantized("model.layers.01.self_attn.o_proj"));
  EXPECT_FALSE(c.SaysQuantized("model.layers.9.mlp.gate"));
  EXPECT_TRUE(c.SaysQuantized("model.layers.9.mlp.gate_proj"));
}

TEST(QuantConfig, MixedPrecisionListsItsLayers) {
  const auto c = Load(
      "hf_quant_config.json",
      R"({"quantization":{"quant_algo":"MIXED_PRECISION","quantized_layers":{"model.a":{"quant_algo":"FP8"}}}})");
  EXPECT_TRUE(c.SaysQuantized("model.a"));
  EXPECT_FALSE(c.SaysQuantized("model.b"));
}

TEST(QuantConfig, NothingSaidIsNoQuantisation) {
  EXPECT_FALSE(Load("config.json", R"({"quantization_config":null})").present());
  EXPECT_FALSE(Load("other", "x").SaysQuantized("lm_head"));
}

TEST(QuantConfig, BadFiles) {
  EXPECT_THAT(QuantConfigError("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(QuantConfigError("[]"), HasSubstr("wanted a JSON object"));
  EXPECT_THAT(QuantConfigError(std::string(100'000, '[')), HasSubstr("deeper than 64"));
  EXPECT_THAT(QuantConfigError(R"({"a":1,"a":2})"), HasSubstr("key 'a' is there twice"));
  EXPECT_THAT(QuantConfigError(R"({"quantization":5})"), HasSubstr("wanted an object"));
  EXPECT_THAT(QuantConfigError(R"({"quantization":{"ignore":"x"}})"), HasSubstr("wanted a list"));
  EXPECT_THAT(QuantConfigError(R"({"quantization":{"ignore":[1]}})"),
              HasSubstr("wanted a list of strings"));
  EXPECT_THAT(QuantConfigError(R"({"quantization":{"ignore":["re:("]}})"),
              HasSubstr("is not a regular expression"));
  EXPECT_THAT(QuantConfigError(fmt::format(R"({{"quantization":{{"ignore":["re:{}"]}}}})",
                                           std::string(5000, '('))),
              HasSubstr("at most 256"));
}

TEST(QuantConfig, NoRegexCanStallTheProgram) {
  const auto c = Load("hf_quant_config.json",
                      R"({"quantization":{"quant_algo":"NVFP4","ignore":["re:(a+)+(a+)+$"]}})");
  EXPECT_TRUE(c.SaysQuantized(std::string(60, 'a').append("b")));
}

}  // namespace
}  // namespace carpool
