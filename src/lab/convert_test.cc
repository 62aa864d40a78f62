// Every family from a Hugging Face folder to GGUF and back: the same logits all the way.
#include "lab/convert.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <tuple>

#include "models/golden_families_testing.h"
#include "weights/gguf.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using testing::GoldenCheckpoint;
using testing::TempDir;
using testing::TinyFamilies;
using testing::TinyFamily;
using testing::TinyGlm;

class Convert : public ::testing::TestWithParam<TinyFamily> {};

void ExpectSame(const std::string& first, const std::string& second, double tolerance) {
  ThreadPool pool(2);
  const auto d = CompareLogits(first, second, pool);
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_LE(d->max_difference, tolerance) << second;
}

/// fp32 there and back.
void RoundTrip(const std::string& dir) {
  TempDir out;
  ThreadPool pool(2);
  const std::string gguf = out.path() + "/m.gguf", back = out.path() + "/back";
  const auto to = ConvertToGguf(dir, gguf, {}, pool);
  ASSERT_TRUE(to) << to.error().message;
  ExpectSame(dir, gguf, 2e-6);
  const auto from = ConvertToHuggingFace(gguf, back, {}, pool);
  ASSERT_TRUE(from) << from.error().message;
  ExpectSame(dir, back, 2e-6);
}

TEST_P(Convert, LogitsSurviveTheRoundTrip) {
  GoldenCheckpoint checkpoint(std::string("convert_") + GetParam().name);
  GetParam().Write(checkpoint);
  RoundTrip(checkpoint.dir());
}

INSTANTIATE_TEST_SUITE_P(All, Convert, ::testing::ValuesIn(TinyFamilies()),
                         [](const auto& family) { return std::string(family.param.name); });

TEST(ConvertGlm, LogitsSurviveTheRoundTrip) {
  TinyGlm tiny;
  tiny.index_topk_freq = 2;  // full, full, shared, full
  tiny.index_skip_topk_offset = 2;
  GoldenCheckpoint checkpoint("convert_glm");
  tiny.Fill(checkpoint);
  checkpoint.Write(tiny.ConfigJson());
  RoundTrip(checkpoint.dir());
}

/// A dense model: rounding cannot change which experts a token meets.
TinyFamily Dense() {
  for (const TinyFamily& family : TinyFamilies()) {
    if (std::string_view(family.name) == "qwen3") return family;
  }
  return {};
}

TEST(ConvertTypes, EachTypeIsWrittenAndStaysClose) {
  GoldenCheckpoint checkpoint("convert_types");
  Dense().Write(checkpoint);
  const std::tuple<Storage, const char*, double> types[] = {
      {Storage::kF32, "F32", 1e-6},    {Storage::kF16, "F16", 3e-3},
      {Storage::kBF16, "BF16", 2e-2},  {Storage::kQ8_0, "Q8_0", 3e-2},
      {Storage::kMXFP4, "MXFP4", 1.0},
  };
  ThreadPool pool(2);
  for (const auto& [type, name, tolerance] : types) {
    TempDir out;
    const std::string gguf = out.path() + "/m.gguf";
    ConvertOptions options;
    options.type = type;
    const auto report = ConvertToGguf(checkpoint.dir(), gguf, options, pool);
    ASSERT_TRUE(report) << report.error().message;
    const auto model = GgufModel::Open(gguf);
    ASSERT_TRUE(model);
    EXPECT_EQ(model->FindTensor("blk.1.ffn_up.weight")->type->name, name);
    EXPECT_EQ(model->FindTensor("blk.1.attn_norm.weight")->type->name, "F32");
    ExpectSame(checkpoint.dir(), gguf, tolerance);
  }
}

TEST(ConvertTypes, Nvfp4KeepsItsValues) {
  // fp32 folder -> GGUF -> folder with NVFP4 MLPs -> GGUF (repacked) -> folder (repacked).
  GoldenCheckpoint checkpoint("convert_nvfp4");
  Dense().Write(checkpoint);
  TempDir out;
  ThreadPool pool(2);
  const std::string plain = out.path() + "/plain.gguf", hf = out.path() + "/hf",
                    gguf = out.path() + "/m.gguf", again = out.path() + "/again";
  ConvertOptions nvfp4;
  nvfp4.type = Storage::kNVFP4;
  ASSERT_TRUE(ConvertToGguf(checkpoint.dir(), plain, {}, pool));
  ASSERT_TRUE(ConvertToHuggingFace(plain, hf, nvfp4, pool));
  const auto report = ConvertToGguf(hf, gguf, {}, pool);
  ASSERT_TRUE(report) << report.error().message;
  const auto model = GgufModel::Open(gguf);
  ASSERT_TRUE(model);
  EXPECT_EQ(model->FindTensor("blk.1.ffn_up.weight")->type->name, "NVFP4");
  EXPECT_NE(model->FindTensor("blk.1.ffn_up.scale"), nullptr);
  // 96 inputs do not fill blocks of 64: those became bf16, which holds code times scales nearly.
  EXPECT_EQ(model->FindTensor("blk.1.ffn_down.weight")->type->name, "BF16");
  ExpectSame(hf, gguf, 2e-2);
  ASSERT_TRUE(ConvertToHuggingFace(gguf, again, {}, pool));
  ExpectSame(gguf, again, 1e-6);
}

TEST(ConvertBad, WhatCannotBeIsRefused) {
  TempDir out;
  ThreadPool pool(1);
  EXPECT_FALSE(ConvertToGguf(out.path() + "/none", out.path() + "/m.gguf", {}, pool));
  std::filesystem::create_directories(out.path() + "/used");
  out.Write("used/x", "x");
  GoldenCheckpoint checkpoint("convert_bad");
  Dense().Write(checkpoint);
  const std::string gguf = out.path() + "/m.gguf";
  ASSERT_TRUE(ConvertToGguf(checkpoint.dir(), gguf, {}, pool));
  const auto used = ConvertToHuggingFace(gguf, out.path() + "/used", {}, pool);
  ASSERT_FALSE(used);
  EXPECT_NE(used.error().message.find("wanted a new or empty directory"), std::string::npos);
}

}  // namespace
}  // namespace carpool
