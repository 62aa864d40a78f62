#include "weights/tensor_binder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quant/packed_matrix.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SafetensorsBytes;
using testing::TempDir;
using testing::TestTensor;

/// A checkpoint of these tensors and a binder on it.
struct Loaded {
  explicit Loaded(const std::vector<TestTensor>& tensors, std::string_view quant = "") {
    dir.Write("model.safetensors", SafetensorsBytes(tensors));
    if (!quant.empty()) dir.Write("hf_quant_config.json", quant);
    auto opened = Checkpoint::OpenDirectory(dir.path());
    EXPECT_TRUE(opened) << opened.error().message;
    checkpoint.emplace(std::move(*opened));
    auto config = QuantConfig::Load(dir.path());
    EXPECT_TRUE(config) << config.error().message;
    binder.emplace(*checkpoint, *config);
  }
  std::string Error() {
    const Status status = binder->Finish();
    return status ? "no error" : status.error().message;
  }
  TempDir dir;
  std::optional<Checkpoint> checkpoint;
  std::optional<TensorBinder> binder;
};

std::vector<float> Row(const StoredMatrix& m, size_t row) {
  std::vector<float> out(m.cols);
  DequantizeRow(m, row, out.data());
  return out;
}

std::string Repeat(std::string_view byte, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += byte;
  return out;
}

/// [2, 16] NVFP4: codes 2 (value 1) low and 3 (value 1.5) high; block scales 1 and 2.
std::vector<TestTensor> NvFp4(const std::string& m, float scale_2 = 0.5f) {
  return {{m + ".weight", "U8", {2, 8}, Repeat("\x32", 16)},
          {m + ".weight_scale", "F8_E4M3", {2, 1}, "\x38\x40"},
          {m + ".weight_scale_2", "F32", {}, Bytes<float>({scale_2})},
          {m + ".input_scale", "F32", {}, Bytes<float>({7.0f})}};
}

TEST(TensorBinder, NvFp4OfModelOpt) {
  Loaded l(NvFp4("m"));
  const auto m = l.binder->Linear("m", 2, 16);
  EXPECT_EQ(l.Error(), "no error");
  ASSERT_EQ(m.storage, Storage::kNVFP4);
  EXPECT_FLOAT_EQ(Row(m, 0)[0], 0.5f);
  EXPECT_FLOAT_EQ(Row(m, 0)[1], 0.75f);
  EXPECT_FLOAT_EQ(Row(m, 1)[15], 1.5f);
  const auto& report = l.binder->report();
  EXPECT_EQ(report.tensor_bytes.at("nvfp4"), 16u + 2 + 4);
  EXPECT_EQ(report.parameters, 32u);
  EXPECT_EQ(report.tensors_bound, 4u);
  EXPECT_TRUE(report.unused.empty());
}

TEST(TensorBinder, SlicesOfFusedExperts) {
  // Two experts of two rows and three columns: as they are, transposed, and every other row.
  const auto numbers = Bytes<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Loaded l({{"plain", "F32", {2, 2, 3}, numbers}, {"turned", "F32", {2, 3, 2}, numbers}});
  const auto plain = l.binder->Slice(
      "plain",
      {.expert = 1, .num_experts = 2, .fused_rows = 2, .row_begin = 1, .rows = 1, .cols = 3});
  const auto turned = l.binder->Slice("turned", {.expert = 1,
                                                 .num_experts = 2,
                                                 .fused_rows = 2,
                                                 .row_begin = 1,
                                                 .rows = 1,
                                                 .cols = 3,
                                                 .row_step = 2,
                                                 .transposed = true});
  EXPECT_EQ(l.Error(), "no error");
  EXPECT_THAT(Row(plain, 0), ElementsAre(9, 10, 11));
  EXPECT_THAT(Row(turned, 0), ElementsAre(7, 9, 11));
}

TEST(TensorBinder, NvFp4OfCompressedTensorsDividesByItsGlobalScale) {
  Loaded l({{"m.weight_packed", "U8", {2, 8}, Repeat("\x32", 16)},
            {"m.weight_scale", "F8_E4M3", {2, 1}, "\x38\x40"},
            {"m.weight_global_scale", "F32", {1}, Bytes<float>({4.0f})},
            {"m.input_global_scale", "F32", {1}, Bytes<float>({9.0f})}});
  const auto m = l.binder->Linear("m", 2, 16);
  EXPECT_EQ(l.Error(), "no error");
  ASSERT_EQ(m.storage, Storage::kNVFP4);
  EXPECT_FLOAT_EQ(Row(m, 1)[0], 0.5f);
  EXPECT_TRUE(l.binder->report().unused.empty());
}

TEST(TensorBinder, MxFp4) {
  Loaded l({{"m.weight_packed", "U8", {1, 16}, Repeat("\x32", 16)},
            {"m.weight_scale", "U8", {1, 1}, "\x80"}});
  const auto m = l.binder->Linear("m", 1, 32);
  EXPECT_EQ(l.Error(), "no error");
  ASSERT_EQ(m.storage, Storage::kMXFP4);
  EXPECT_FLOAT_EQ(Row(m, 0)[1], 3.0f);
}

TEST(TensorBinder, Fp8BlocksRowsAndScalars) {
  const std::string ones = Repeat("\x38", 130 * 200);
  Loaded l({{"block.weight", "F8_E4M3", {130, 200}, ones},
            {"block.weight_scale_inv", "F32", {2, 2}, Bytes<float>({1, 2, 3, 4})},
            {"row.weight", "F8_E4M3", {2, 3}, Repeat("\x38", 6)},
            {"row.weight_scale", "F32", {2, 1}, Bytes<float>({5, 6})},
            {"row1.weight", "F8_E4M3", {2, 3}, Repeat("\x38", 6)},
            {"row1.weight_scale", "BF16", {2}, Bytes<uint16_t>({0x3F80, 0x4000})},
            {"all.weight", "F8_E4M3", {2, 3}, Repeat("\x38", 6)},
            {"all.weight_scale", "F32", {}, Bytes<float>({7})},
            {"small.weight", "F8_E4M3", {40, 16}, Repeat("\x38", 640)},
            {"small.weight_scale", "F32", {3, 1}, Bytes<float>({1, 2, 3})}});
  const auto block = l.binder->Linear("block", 130, 200);
  EXPECT_FLOAT_EQ(Row(block, 127)[127], 1.0f);
  EXPECT_FLOAT_EQ(Row(block, 127)[128], 2.0f);
  EXPECT_FLOAT_EQ(Row(block, 129)[0], 3.0f);
  EXPECT_FLOAT_EQ(Row(block, 128)[199], 4.0f);
  EXPECT_FLOAT_EQ(Row(l.binder->Linear("row", 2, 3), 1)[2], 6.0f);
  EXPECT_FLOAT_EQ(Row(l.binder->Linear("row1", 2, 3), 1)[2], 2.0f);
  EXPECT_FLOAT_EQ(Row(l.binder->Linear("all", 2, 3), 1)[2], 7.0f);
  const auto small = l.binder->Linear("small", 40, 16);  // blocks of 16 rows
  EXPECT_FLOAT_EQ(Row(small, 15)[0], 1.0f);
  EXPECT_FLOAT_EQ(Row(small, 39)[0], 3.0f);
  EXPECT_EQ(l.Error(), "no error");
}

TEST(TensorBinder, FloatsVectorsAndSlices) {
  Loaded l({{"f32.weight", "F32", {1, 2}, Bytes<float>({1, 2})},
            {"bf16.weight", "BF16", {1, 2}, Bytes<uint16_t>({0x3F80, 0x4000})},
            {"f16.weight", "F16", {1, 2}, Bytes<uint16_t>({0x3C00, 0x4000})},
            {"norm", "BF16", {2}, Bytes<uint16_t>({0x3F80, 0xC000})},
            {"experts.gate_up_proj", "F32", {2, 2, 2}, Bytes<float>({0, 1, 2, 3, 4, 5, 6, 7})},
            {"leftover", "U8", {1}, "x"},
            {"x.rotary_emb.inv_freq", "F32", {1}, Bytes<float>({1})}});
  EXPECT_THAT(Row(l.binder->Linear("f32", 1, 2), 0), ElementsAre(1, 2));
  EXPECT_THAT(Row(l.binder->Linear("bf16", 1, 2), 0), ElementsAre(1, 2));
  EXPECT_THAT(Row(l.binder->Linear("f16", 1, 2), 0), ElementsAre(1, 2));
  EXPECT_THAT(l.binder->Vector("norm", 2), ElementsAre(1, -2));
  EXPECT_THAT(Row(l.binder->Slice("experts.gate_up_proj", {1, 2, 2, 1, 1, 2}), 0),
              ElementsAre(6, 7));
  EXPECT_EQ(l.binder->OptionalLinear("nothing", 1, 2).rows, 0u);
  EXPECT_TRUE(l.binder->OptionalVector("nothing", 1).empty());
  EXPECT_EQ(l.Error(), "no error");
  EXPECT_THAT(l.binder->report().unused, ElementsAre("leftover"));
}

TEST(TensorBinder, TiedWeightsCountOnce) {
  Loaded l({{"e.weight", "F32", {1, 2}, Bytes<float>({1, 2})}});
  l.binder->Linear("e", 1, 2);
  l.binder->Linear("e", 1, 2);
  EXPECT_EQ(l.Error(), "no error");
  EXPECT_EQ(l.binder->report().parameters, 2u);
}

TEST(TensorBinder, OneErrorListsTheFirstTwentyByNameAndCountsTheRest) {
  Loaded l({{"bad.weight", "F32", {2, 1}, Bytes<float>({1, 2})},
            {"int.weight", "I64", {1, 1}, Repeat("x", 8)}});
  for (int i = 39; i >= 10; --i) l.binder->Linear(fmt::format("missing{}", i), 3, 4);
  l.binder->Linear("bad", 1, 2);
  l.binder->Linear("int", 1, 1);
  l.binder->Vector("gone", 5);
  const std::string error = l.Error();
  EXPECT_THAT(error, HasSubstr("33 tensors cannot be loaded"));
  EXPECT_THAT(error, HasSubstr("bad.weight: wanted shape [1, 2], got F32 [2, 1]"));
  EXPECT_THAT(error,
              HasSubstr("int.weight: wanted F32, BF16, F16, F8_E4M3, I8 or packed U8, got I64"));
  EXPECT_THAT(error, HasSubstr("gone: missing, wanted shape [5]"));
  EXPECT_THAT(error, HasSubstr("missing10.weight: missing, wanted shape [3, 4]"));
  EXPECT_THAT(error, HasSubstr("missing26.weight"));
  EXPECT_EQ(error.find("missing27.weight"), std::string::npos);
  EXPECT_THAT(error, HasSubstr("; and 13 more"));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

struct BadModule {
  const char* what;
  std::vector<TestTensor> tensors;
  const char* message;
  size_t cols = 16;
};
void PrintTo(const BadModule& bad, std::ostream* out) { *out << bad.what; }
class TensorBinderBad : public ::testing::TestWithParam<BadModule> {};

TEST_P(TensorBinderBad, NamesTheTensor) {
  Loaded l(GetParam().tensors);
  EXPECT_EQ(l.binder->Linear("m", 2, GetParam().cols).rows, 0u);
  const std::string error = l.Error();
  EXPECT_THAT(error, HasSubstr(GetParam().message));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

std::vector<TestTensor> Replaced(size_t index, TestTensor tensor) {
  auto all = NvFp4("m");
  all[index] = std::move(tensor);
  return all;
}
std::vector<TestTensor> Without(size_t index) {
  auto all = NvFp4("m");
  all.erase(all.begin() + static_cast<ptrdiff_t>(index));
  return all;
}
std::vector<TestTensor> With(TestTensor tensor) {
  auto all = NvFp4("m");
  all.push_back(std::move(tensor));
  return all;
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Storages, TensorBinderBad,
    ::testing::Values(
        BadModule{"nan global", NvFp4("m", kNaN),
                  "m.weight_scale_2: is nan, wanted a finite number"},
        BadModule{"inf global", NvFp4("m", kInf), "m.weight_scale_2: is inf"},
        BadModule{"negative global", NvFp4("m", -1.0f), "m.weight_scale_2: is -1"},
        BadModule{"no global", Without(2), "m.weight_scale_2: missing"},
        BadModule{"no scales", Without(1), "m.weight_scale: missing"},
        BadModule{"scale shape", Replaced(1, {"m.weight_scale", "F8_E4M3", {1, 2}, "ab"}),
                  "m.weight_scale: wanted F8_E4M3 [2, 1], got F8_E4M3 [1, 2]"},
        BadModule{"scale dtype", Replaced(1, {"m.weight_scale", "F32", {2, 1}, Repeat("x", 8)}),
                  "wanted F8_E4M3 [2, 1]"},
        BadModule{"codes shape", Replaced(0, {"m.weight", "U8", {2, 7}, Repeat("x", 14)}),
                  "m.weight: wanted U8 [2, 8] (nvfp4 [2, 16]), got U8 [2, 7]"},
        BadModule{"odd inputs", NvFp4("m"), "nvfp4 needs a multiple of 16 inputs, got 24", 24},
        BadModule{"awq", With({"m.pre_quant_scale", "BF16", {16}, Repeat("x", 32)}),
                  "AWQ weights (pre_quant_scale)"},
        BadModule{"int4 shape",
                  {{"m.weight_packed", "I32", {2, 3}, Repeat("x", 24)},
                   {"m.weight_scale", "BF16", {2, 1}, "abcd"}},
                  "m.weight_packed: wanted I32 [2, 2] (int4 [2, 16]), got I32 [2, 3]"},
        BadModule{"int4 scales",
                  {{"m.weight_packed", "I32", {2, 2}, Repeat("x", 16)},
                   {"m.weight_scale", "BF16", {2, 3}, Repeat("ab", 6)}},
                  "m.weight_scale: wanted one float per row and group of inputs"},
        BadModule{"int4 no scales",
                  {{"m.weight_packed", "I32", {2, 2}, Repeat("x", 16)}},
                  "m.weight_scale: missing, but the weight is packed I32"},
        BadModule{"int4 zero points",
                  {{"m.weight_packed", "I32", {2, 2}, Repeat("x", 16)},
                   {"m.weight_scale", "BF16", {2, 1}, "abcd"},
                   {"m.weight_zero_point", "I32", {2, 1}, Repeat("x", 8)}},
                  "int4 weights with zero points"},
        BadModule{"ct zero global",
                  {{"m.weight_packed", "U8", {2, 8}, Repeat("x", 16)},
                   {"m.weight_scale", "F8_E4M3", {2, 1}, "ab"},
                   {"m.weight_global_scale", "F32", {1}, Bytes<float>({0.0f})}},
                  "m.weight_global_scale: is 0"},
        BadModule{"fp8 scale shape",
                  {{"m.weight", "F8_E4M3", {2, 16}, Repeat("x", 32)},
                   {"m.weight_scale", "F32", {3}, Repeat("x", 12)}},
                  "m.weight_scale: wanted one scale, one per row"},
        BadModule{"fp8 scale dtype",
                  {{"m.weight", "F8_E4M3", {2, 16}, Repeat("x", 32)},
                   {"m.weight_scale", "F16", {1}, "ab"}},
                  "wanted F32 or BF16 scales"}));

TEST(TensorBinder, Int4OfCompressedTensors) {
  // Word 0x76543210: inputs 0 … 7 are codes 0 … 7, that is -8 … -1.
  Loaded l({{"m.weight_packed",
             "I32",
             {2, 4},
             Bytes<uint32_t>({0x76543210, 0xFEDCBA98, 0, 0, 0x88888888, 0, 0, 0xF0000000})},
            {"m.weight_scale", "BF16", {2, 1}, Bytes<uint16_t>({0x3F00, 0x4000})},
            {"m.weight_shape", "I64", {2}, Bytes<int64_t>({2, 32})}});
  const auto m = l.binder->Linear("m", 2, 32);
  ASSERT_EQ(l.Error(), "no error");
  ASSERT_EQ(m.storage, Storage::kInt4);
  const auto first = Row(m, 0), second = Row(m, 1);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(first[i], 0.5f * (static_cast<float>(i) - 8.0f));
  EXPECT_EQ(second[0], 0.0f);
  EXPECT_EQ(second[31], 14.0f);
  EXPECT_EQ(l.binder->report().tensor_bytes.at("int4"), 32u + 4);
  EXPECT_TRUE(l.binder->report().unused.empty());
}

TEST(TensorBinder, NaNBlockScalesAreRefusedWhenPacked) {
  auto tensors = NvFp4("m");
  tensors[1].bytes = "\x38\x7f";
  Loaded l(tensors);
  const auto m = l.binder->Linear("m", 2, 16);
  ASSERT_EQ(l.Error(), "no error");
  const auto packed = PackedMatrix::Pack(m);
  ASSERT_FALSE(packed);
  EXPECT_THAT(packed.error().message, HasSubstr("m: block scale 1 is nan"));
}

TEST(TensorBinder, VectorsMustBeFinite) {
  Loaded l({{"bias", "F32", {2}, Bytes<float>({1, kNaN})}});
  EXPECT_TRUE(l.binder->Vector("bias", 2).empty());
  EXPECT_THAT(l.Error(), HasSubstr("bias: element 1 is nan"));
}

TEST(TensorBinder, WarnsWhereTheConfigDisagrees) {
  auto tensors = NvFp4("lm_head");
  tensors.push_back({"a.weight", "F32", {1, 2}, Bytes<float>({1, 2})});
  Loaded l(tensors, R"({"quantization":{"quant_algo":"NVFP4","exclude_modules":["lm_*"]}})");
  l.binder->Linear("lm_head", 2, 16);
  l.binder->Linear("a", 1, 2);
  EXPECT_EQ(l.Error(), "no error");
  const auto& warnings = l.binder->report().warnings;
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0],
              HasSubstr("excludes 1 module whose tensors are quantised, e.g. lm_head (nvfp4)"));
  EXPECT_THAT(warnings[1],
              HasSubstr("promises 1 quantised module whose tensors are floats, e.g. a (f32)"));
}

}  // namespace
}  // namespace carpool
