#include "quant/gguf_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "quant/gguf_blocks.h"
#include "quant/random_matrix.h"

namespace carpool {
namespace {

std::vector<float> Decode(const GgufMatrix& m, Storage storage, size_t rows, size_t cols) {
  StoredMatrix view;
  view.storage = storage;
  view.rows = rows;
  view.cols = cols;
  view.data = m.bytes.data();
  view.global_scale = m.scale;
  std::vector<float> out(rows * cols);
  for (size_t r = 0; r < rows; ++r) DequantizeRow(view, r, out.data() + r * cols);
  return out;
}
std::vector<float> Decode(const StoredMatrix& m) {
  std::vector<float> out(m.rows * m.cols);
  for (size_t r = 0; r < m.rows; ++r) DequantizeRow(m, r, out.data() + r * m.cols);
  return out;
}

TEST(GgufEncode, HalvesRoundToNearestEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = F16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToF16(value), bits);
  }
  EXPECT_EQ(FloatToF16(1.0f + 0x1p-11f), 0x3C00);      // a tie, to even
  EXPECT_EQ(FloatToF16(1.0f + 3 * 0x1p-11f), 0x3C02);  // the next one, up
  EXPECT_EQ(FloatToF16(65519.0f), 0x7BFF);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToF16(0x1p-25f), 0);
  EXPECT_EQ(FloatToF16(3 * 0x1p-26f), 1);
  EXPECT_EQ(FloatToF16(-2.0f), 0xC000);
  EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(GgufEncode, FourBitFloatsKeepTheirCodes) {
  ThreadPool pool(2);
  for (const auto& [format, target] : {std::pair(WeightFormat::kNVFP4, Storage::kGgufNVFP4),
                                       std::pair(WeightFormat::kMXFP4, Storage::kGgufMXFP4)}) {
    const OwnedMatrix source = RandomMatrix(format, 7, 192, 3);
    const auto out = EncodeGguf(source.view, target, pool);
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(Decode(*out, target, 7, 192), Decode(source.view));
  }
}

TEST(GgufEncode, Q8_0StaysWithinHalfAStep) {
  ThreadPool pool(2);
  const OwnedMatrix source = RandomMatrix(WeightFormat::kF32, 9, 96, 5);
  const auto out = EncodeGguf(source.view, Storage::kQ8_0, pool);
  ASSERT_TRUE(out);
  const auto from = Decode(source.view), to = Decode(*out, Storage::kQ8_0, 9, 96);
  for (size_t b = 0; b < from.size(); b += 32) {
    float max = 0.0f;
    for (size_t i = 0; i < 32; ++i) max = std::max(max, std::fabs(from[b + i]));
    for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(to[b + i], from[b + i], max / 127 * 0.51f);
  }
}

TEST(GgufEncode, RowsCanBeReordered) {
  ThreadPool pool(1);
  const OwnedMatrix source = RandomMatrix(WeightFormat::kBF16, 4, 32, 5);
  const auto from = Decode(source.view);
  for (const Storage target : {Storage::kBF16, Storage::kF32}) {
    const auto out = EncodeGguf(source.view, target, pool, {2, 0, 3, 1});
    ASSERT_TRUE(out);
    const auto to = Decode(*out, target, 4, 32);
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(to[i], from[2 * 32 + i]);
      EXPECT_EQ(to[3 * 32 + i], from[32 + i]);
    }
  }
}

TEST(GgufEncode, WhatDoesNotFitIsRefused) {
  ThreadPool pool(1);
  const OwnedMatrix source = RandomMatrix(WeightFormat::kF32, 2, 48, 5);
  EXPECT_FALSE(EncodeGguf(source.view, Storage::kQ8_0, pool));
  EXPECT_FALSE(EncodeGguf(source.view, Storage::kGgufNVFP4, pool));
  EXPECT_FALSE(EncodeGguf(source.view, Storage::kQ4_K, pool));
}

}  // namespace
}  // namespace carpool
