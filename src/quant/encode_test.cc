#include "quant/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace carpool {
namespace {

TEST(Encode, E2M1RoundsTiesToTheEvenCode) {
  const std::pair<double, int> cases[] = {
      {0.25, 0}, {0.26, 1}, {0.74, 1}, {0.75, 2}, {1.25, 2}, {1.26, 3}, {1.75, 4}, {2.5, 4},
      {2.51, 5}, {3.4, 5},  {3.5, 6},  {5.0, 6},  {5.01, 7}, {7.0, 7},  {-0.1, 8}, {-0.3, 9}};
  for (const auto& [value, code] : cases) EXPECT_EQ(FloatToE2M1(value), code) << value;
}

TEST(Encode, E4M3IsTheNearestCode) {
  for (int bits = 0; bits < 0x7F; ++bits) {
    const float value = F8E4M3ToFloat(static_cast<uint8_t>(bits));
    EXPECT_EQ(FloatToE4M3(value), bits);
    EXPECT_EQ(FloatToE4M3(-value), bits | 0x80);
    if (bits == 0x7E) break;
    const float next = F8E4M3ToFloat(static_cast<uint8_t>(bits + 1)), middle = (value + next) / 2;
    EXPECT_EQ(FloatToE4M3(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, next)), bits + 1);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, value)), bits);
  }
  EXPECT_EQ(FloatToE4M3(1e9f), 0x7E);
  EXPECT_EQ(FloatToE4M3(std::nanf("")) & 0x7F, 0x7F);
}

StoredMatrix View(const std::vector<float>& values, size_t rows, size_t cols) {
  StoredMatrix m;
  m.name = "w";
  m.rows = rows;
  m.cols = cols;
  m.data = reinterpret_cast<const std::byte*>(values.data());
  m.data_bytes = values.size() * 4;
  return m;
}

TEST(Encode, NVFP4OfAKnownRow) {
  std::vector<float> w(16);
  for (int i = 0; i < 16; ++i) w[static_cast<size_t>(i)] = 0.1f * static_cast<float>(i - 7);
  ThreadPool pool(1);
  const auto e = EncodeMatrix(View(w, 1, 16), Storage::kNVFP4, pool);
  ASSERT_TRUE(e.has_value());
  EXPECT_NEAR(e->matrix.view.global_scale, 2.9761906e-4f, 1e-10f);
  EXPECT_EQ(static_cast<int>(e->matrix.scales[0]), 0x7E);
  const int packed[] = {0xEF, 0xDE, 0xBC, 0x09, 0x31, 0x54, 0x66, 0x77};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<int>(e->matrix.data[i]), packed[i]) << i;
}

TEST(Encode, EveryTargetStaysNearItsSource) {
  const OwnedMatrix source = RandomMatrix(WeightFormat::kF32, 150, 160, 3);
  ThreadPool pool(2);
  const std::pair<Storage, double> targets[] = {{Storage::kBF16, 0.003},
                                                {Storage::kF8E4M3, 0.03},
                                                {Storage::kInt8, 0.006},
                                                {Storage::kNVFP4, 0.11},
                                                {Storage::kMXFP4, 0.14}};
  for (const auto& [target, bound] : targets) {
    const auto e = EncodeMatrix(source.view, target, pool);
    ASSERT_TRUE(e.has_value());
    EXPECT_LT(std::sqrt(e->squared_error / e->squared_source), bound) << StorageName(target);
    EXPECT_GT(e->squared_error, 0.0);
    EXPECT_TRUE(PackedMatrix::Pack(e->matrix.view).has_value());
  }
}

TEST(Encode, ZerosStayZerosAndBadInputIsNamed) {
  ThreadPool pool(1);
  const std::vector<float> zeros(64, 0.0f);
  for (const Storage target : {Storage::kNVFP4, Storage::kMXFP4, Storage::kF8E4M3}) {
    const auto e = EncodeMatrix(View(zeros, 2, 32), target, pool);
    ASSERT_TRUE(e.has_value());
    EXPECT_EQ(e->squared_error, 0.0);
  }
  EXPECT_EQ(EncodeMatrix(View(zeros, 4, 8), Storage::kNVFP4, pool).error().code,
            ErrorCode::kUnsupported);
  std::vector<float> bad(32, 1.0f);
  bad[5] = std::nanf("");
  EXPECT_EQ(EncodeMatrix(View(bad, 1, 32), Storage::kNVFP4, pool).error().code,
            ErrorCode::kCorrupt);
}

TEST(Encode, Int8BlocksArePackedAsTheyAreStored) {
  const OwnedMatrix source = RandomMatrix(WeightFormat::kF32, 37, 150, 9);
  ThreadPool pool(1);
  const auto e = EncodeMatrix(source.view, Storage::kInt8, pool);
  ASSERT_TRUE(e.has_value());
  const auto from_int8 = PackedMatrix::Pack(e->matrix.view),
             from_floats = PackedMatrix::Pack(source.view, WeightFormat::kQ8);
  ASSERT_TRUE(from_int8.has_value() && from_floats.has_value());
  EXPECT_EQ(from_int8->format(), WeightFormat::kQ8);
  const size_t scale_bytes = 64, block_bytes = 8 * 64;
  ASSERT_EQ(from_int8->bytes(), from_floats->bytes());
  // Codes of padding rows and inputs are the only difference there could be; both leave them zero.
  EXPECT_EQ(std::memcmp(from_int8->panels(), from_floats->panels(), scale_bytes + block_bytes), 0);
  std::vector<float> row(150), decoded(150);
  DequantizeRow(source.view, 3, row.data());
  DequantizeRow(e->matrix.view, 3, decoded.data());
  for (size_t i = 0; i < 150; ++i) EXPECT_NEAR(decoded[i], row[i], 0.01f * 0.3f) << i;
}

}  // namespace
}  // namespace carpool
