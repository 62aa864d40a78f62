// gpt_oss experts in MXFP4 blocks against the same values as floats.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "models/golden_families_testing.h"
#include "models/model_runner_testing.h"

namespace carpool {
namespace {

using testing::GoldenCheckpoint;
using testing::GoldenTokens;
using testing::Runner;
using testing::TinyFamilies;
using testing::TinyFamily;

constexpr size_t kExperts = 8, kHidden = 64, kWidth = 64;

/// One fused tensor [experts, rows, cols]: codes and exponents that depend on its name.
struct Fused {
  Fused(const std::string& name, size_t r, size_t c) : rows(r), cols(c) {
    const auto noise = testing::GoldenTensor(name, {kExperts, rows, cols});
    const float largest = std::sqrt(3.0f / static_cast<float>(cols));
    codes.resize(noise.size() / 2);
    scales.resize(noise.size() / 32);
    for (size_t i = 0; i < noise.size(); ++i) {
      const auto code = static_cast<uint8_t>((noise[i] / largest + 1.0f) * 7.99f);
      codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | code << (i % 2 * 4));
    }
    for (size_t i = 0; i < scales.size(); ++i)
      scales[i] = static_cast<uint8_t>(122 + codes[i * 16] % 3);
  }
  float Value(size_t expert, size_t row, size_t col) const {
    const size_t i = (expert * rows + row) * cols + col;
    return E2M1ToFloat(static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4) & 15)) *
           E8M0ToFloat(scales[i / 32]);
  }
  size_t rows, cols;
  std::vector<uint8_t> codes, scales;
};

std::vector<float> Logits(bool packed) {
  GoldenCheckpoint checkpoint("gpt_oss_mxfp4");
  testing::TinyTensors t(checkpoint, "");
  t.Ends();
  for (int layer = 0; layer < 4; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    t.Norms(at);
    t.Attention(at, {.qkv_bias = true, .o_bias = true});
    t.Add(at + "self_attn.sinks", {4});
    t.Add(at + "mlp.router.weight", {kExperts, kHidden});
    t.Add(at + "mlp.router.bias", {kExperts});
    t.Add(at + "mlp.experts.gate_up_proj_bias", {kExperts, 2 * kWidth});
    t.Add(at + "mlp.experts.down_proj_bias", {kExperts, kHidden});
    const std::pair<const char*, Fused> fused[] = {
        {"gate_up_proj", Fused(at + "gate_up", 2 * kWidth, kHidden)},
        {"down_proj", Fused(at + "down", kHidden, kWidth)}};
    for (const auto& [part, f] : fused) {
      const std::string name = at + "mlp.experts." + part;
      if (packed) {
        checkpoint.AddRaw(name + "_blocks", "U8", {kExperts, f.rows, f.cols / 32, 16},
                          f.codes.data(), f.codes.size());
        checkpoint.AddRaw(name + "_scales", "U8", {kExperts, f.rows, f.cols / 32}, f.scales.data(),
                          f.scales.size());
        continue;
      }
      std::vector<float> transposed;
      for (size_t e = 0; e < kExperts; ++e) {
        for (size_t c = 0; c < f.cols; ++c) {
          for (size_t r = 0; r < f.rows; ++r) transposed.push_back(f.Value(e, r, c));
        }
      }
      checkpoint.AddRaw(name, "F32", {kExperts, f.cols, f.rows}, transposed.data(),
                        transposed.size() * sizeof(float));
    }
  }
  const auto families = TinyFamilies();
  const auto family = std::find_if(families.begin(), families.end(), [](const TinyFamily& f) {
    return std::string_view(f.name) == "gpt_oss";
  });
  checkpoint.Write(family->ConfigJson());
  Runner runner(checkpoint.dir());
  EXPECT_EQ(runner.config().gqa.window[0], 8u);
  return runner.Prefill(GoldenTokens(24), 24);
}

TEST(GptOss, Mxfp4ExpertsEqualTheirFloats) {
  const auto packed = Logits(true), floats = Logits(false);
  float largest = 0;
  for (const float l : floats) largest = std::max(largest, std::fabs(l));
  ASSERT_GT(largest, 1.0f);
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_NEAR(packed[i], floats[i], 1e-5f * largest) << i;
}

}  // namespace
}  // namespace carpool
