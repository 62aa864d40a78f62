#include "models/glm_moe_dsa_weights.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

const std::string kBundled = CARPOOL_SOURCE_DIR "/models/books-20m";

TEST(GlmMoeDsaWeights, BindsTheBundledModel) {
  auto checkpoint = Checkpoint::OpenDirectory(kBundled);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto config = LoadModelConfig(kBundled);
  ASSERT_TRUE(config) << config.error().message;
  auto quant = QuantConfig::Load(kBundled);
  ASSERT_TRUE(quant) << quant.error().message;
  TensorBinder binder(*checkpoint, *quant);
  auto weights = BindGlmMoeDsa(*config, binder);
  ASSERT_TRUE(weights) << weights.error().message;
  ASSERT_EQ(weights->layers.size(), 6u);
  EXPECT_TRUE(weights->layers[0].dense.has_value());
  ASSERT_TRUE(weights->layers[5].moe.has_value());
  const auto& moe = *weights->layers[5].moe;
  ASSERT_EQ(moe.experts.size(), 128u);
  EXPECT_EQ(moe.experts[127].down.storage, Storage::kNVFP4);
  EXPECT_EQ(moe.experts[127].down.rows, 256u);
  EXPECT_EQ(moe.experts[127].down.cols, 32u);
  EXPECT_EQ(moe.router.storage, Storage::kBF16);
  EXPECT_TRUE(moe.shared.has_value());
  EXPECT_EQ(moe.correction_bias.size(), 128u);
  for (const auto& m : {moe.experts[3].gate, moe.experts[3].up, moe.experts[3].down}) {
    EXPECT_TRUE(ValidateScales(m));
  }
  const auto& report = binder.report();
  EXPECT_TRUE(report.unused.empty());
  EXPECT_TRUE(report.warnings.empty()) << report.warnings[0];
  // 5 layers x 128 experts x 3 matrices of 8,192 weights: 4 bits, an e4m3 scale per 16, one fp32 factor.
  EXPECT_EQ(report.tensor_bytes.at("nvfp4"), 5u * 128 * 3 * (8192 / 2 + 8192 / 16 + 4));
  EXPECT_EQ(report.tensor_bytes.at("f32"), 5u * 128 * 4);
  EXPECT_GT(report.parameters, 19'000'000u);
  EXPECT_LT(report.parameters, 22'000'000u);
}

}  // namespace
}  // namespace carpool
