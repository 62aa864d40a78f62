// Every format on every variant this CPU has, against the dequantised product in double.
#include "quant/packed_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/aligned.h"
#include "quant/random_matrix.h"

namespace carpool {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16,  WeightFormat::kFP8,
                                     WeightFormat::kQ8,  WeightFormat::kNVFP4, WeightFormat::kMXFP4,
                                     WeightFormat::kQ4,  WeightFormat::kQ6};

std::vector<const KernelSet*> Variants() {
  std::vector<const KernelSet*> sets;
  for (const Isa isa : {Isa::kScalar, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    if (KernelsFor(isa) != nullptr) sets.push_back(KernelsFor(isa));
  }
  return sets;
}

/// Rows of activations in both forms.
struct TestRows {
  TestRows(size_t rows, size_t cols, uint64_t seed)
      : cols_(cols),
        padded(RoundUp(cols, kBlockInputs)),
        values(rows * padded),
        blocks(rows * padded / kBlockInputs) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t i = 0; i < cols; ++i) values[r * padded + i] = normal(random);
    }
  }
  float* Row(size_t r) { return values.data() + r * padded; }
  void Prepare(const KernelSet& kernels) {
    f32.clear();
    q8.clear();
    for (size_t r = 0; r < values.size() / padded; ++r) {
      f32.push_back(Row(r));
      q8.push_back(&blocks[r * padded / kBlockInputs]);
      kernels.quantize(Row(r), cols_, &blocks[r * padded / kBlockInputs]);
    }
  }
  size_t cols_, padded;
  AlignedBuffer<float> values;
  AlignedBuffer<Q8Block> blocks;
  std::vector<const float*> f32;
  std::vector<const Q8Block*> q8;
};

/// y[rows, panels * 16].
std::vector<float> Multiply(const KernelSet& kernels, const PackedMatrix& w, const TestRows& x,
                            size_t first, size_t rows, bool q8) {
  const size_t width = w.num_panels() * kPanelRows;
  std::vector<float> y(rows * width, std::numeric_limits<float>::quiet_NaN());
  PanelCall call = w.Call(0, w.num_panels(), q8);
  call.x = q8 ? static_cast<const void*>(x.q8.data() + first)
              : static_cast<const void*>(x.f32.data() + first);
  call.rows = rows;
  call.y = y.data();
  call.y_stride = width;
  const auto f = static_cast<size_t>(w.format());
  (q8 ? kernels.q8[f] : kernels.f32[f])(call);
  return y;
}

bool RoundsWhenPacked(WeightFormat f) {
  return f == WeightFormat::kQ8 || f == WeightFormat::kQ4 || f == WeightFormat::kQ6;
}

/// The packed weight's values. Where packing rounds, decoded by multiplying with unit vectors.
std::vector<float> Values(const OwnedMatrix& source, const PackedMatrix& w) {
  std::vector<float> values(w.rows() * w.cols());
  if (!RoundsWhenPacked(w.format())) {
    for (size_t r = 0; r < w.rows(); ++r)
      DequantizeRow(source.view, r, values.data() + r * w.cols());
    return values;
  }
  TestRows unit(1, w.cols(), 0);
  for (size_t i = 0; i < w.cols(); ++i) {
    std::fill(unit.Row(0), unit.Row(0) + w.cols(), 0.0f);
    unit.Row(0)[i] = 1.0f;
    unit.Prepare(*ScalarKernels());
    const auto y = Multiply(*ScalarKernels(), w, unit, 0, 1, false);
    for (size_t r = 0; r < w.rows(); ++r) values[r * w.cols() + i] = y[r];
  }
  return values;
}

PackedMatrix Pack(const OwnedMatrix& m, WeightFormat format) {
  auto packed = PackedMatrix::Pack(m.view, format);
  EXPECT_TRUE(packed.has_value()) << packed.error().message;
  return std::move(packed).value();
}

size_t ColsFor(WeightFormat format, size_t cols) {
  if (format == WeightFormat::kNVFP4) return RoundUp(cols, 16);
  if (format == WeightFormat::kMXFP4 || format == WeightFormat::kQ4) return RoundUp(cols, 32);
  if (format == WeightFormat::kQ6) return RoundUp(cols, 256);
  return cols;
}

/// Largest |y - exact| over sum |x w|, all outputs.
double WorstError(const std::vector<float>& y, size_t width, const std::vector<float>& values,
                  const PackedMatrix& w, TestRows& x, size_t rows) {
  double worst = 0.0;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < w.rows(); ++o) {
      double exact = 0.0, magnitude = 1e-30;
      for (size_t i = 0; i < w.cols(); ++i) {
        const double term =
            static_cast<double>(x.Row(r)[i]) * static_cast<double>(values[o * w.cols() + i]);
        exact += term;
        magnitude += std::fabs(term);
      }
      worst = std::max(worst, std::fabs(static_cast<double>(y[r * width + o]) - exact) / magnitude);
    }
  }
  return worst;
}

TEST(PackedMatrix, EveryFormatVariantAndTailMatchesTheDoubleProduct) {
  for (const WeightFormat format : kFormats) {
    for (const auto& [rows, cols] : std::vector<std::pair<size_t, size_t>>{
             {1, 32}, {16, 64}, {37, 96}, {50, 7}, {33, 200}, {5, 336}}) {
      const OwnedMatrix source =
          RandomMatrix(format, rows, ColsFor(format, cols), rows * 1000 + cols);
      const PackedMatrix w = Pack(source, format);
      const auto values = Values(source, w);
      TestRows x(11, w.cols(), 7);
      for (size_t i = 0; i < w.cols(); i += 5) x.Row(2)[i] *= 1e4f;  // outliers
      std::fill(x.Row(3), x.Row(3) + w.cols(), 0.0f);
      for (const KernelSet* kernels : Variants()) {
        x.Prepare(*kernels);
        const auto y = Multiply(*kernels, w, x, 0, 11, false);
        EXPECT_LT(WorstError(y, w.num_panels() * 16, values, w, x, 11), 1e-6)
            << WeightFormatName(format) << " " << IsaName(kernels->isa) << " [" << rows << ", "
            << w.cols() << "]";
        for (size_t o = 0; o < rows; ++o) EXPECT_EQ(y[3 * w.num_panels() * 16 + o], 0.0f);
      }
    }
  }
}

TEST(PackedMatrix, GgufBlocksKeepTheirCodesAndRoundOnlyScales) {
  // Q4_1 below 256 inputs, Q4_K and Q6_K from there on; Q4_0 apart.
  std::vector<OwnedMatrix> sources;
  sources.push_back(RandomMatrix(WeightFormat::kQ4, 33, 96, 21));
  sources.push_back(RandomMatrix(WeightFormat::kQ4, 33, 512, 22));
  sources.push_back(RandomMatrix(WeightFormat::kQ6, 33, 512, 23));
  OwnedMatrix q4_0 = RandomMatrix(WeightFormat::kQ4, 33, 96, 24);
  q4_0.view.storage = Storage::kQ4_0;
  std::vector<std::byte> blocks;
  for (size_t b = 0; b < q4_0.data.size(); b += 20) {
    for (size_t i = 0; i < 20; ++i) {
      if (i < 2 || i >= 4) blocks.push_back(q4_0.data[b + i]);  // without the minimum
    }
  }
  q4_0.data = std::move(blocks);
  q4_0.view.data = q4_0.data.data();
  sources.push_back(std::move(q4_0));
  for (const OwnedMatrix& source : sources) {
    const auto packed = PackedMatrix::Pack(source.view);
    ASSERT_TRUE(packed.has_value()) << packed.error().message;
    const auto values = Values(source, *packed);
    std::vector<float> row(source.view.cols);
    double largest = 0.0;
    for (size_t r = 0; r < source.view.rows; ++r) {
      DequantizeRow(source.view, r, row.data());
      for (const float v : row) largest = std::max(largest, std::fabs(static_cast<double>(v)));
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_NEAR(values[r * row.size() + i], row[i], largest * 0x1p-10)
            << StorageName(source.view.storage) << " [" << r << ", " << i << "]";
      }
    }
  }
}

TEST(PackedMatrix, GgufBlocksWithScalesThatAreNotFiniteAreRefused) {
  OwnedMatrix source = RandomMatrix(WeightFormat::kQ6, 16, 256, 2);
  source.view.name = "blk.0.ffn_down_exps";
  source.data[209] = static_cast<std::byte>(0x7C);  // the first block's factor
  const auto packed = PackedMatrix::Pack(source.view);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(packed.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(packed.error().message.find("blk.0.ffn_down_exps"), std::string::npos);
}

TEST(StoredMatrix, F16RoundsToTheNearestCode) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const float value = F16ToFloat(static_cast<uint16_t>(bits));
    ASSERT_EQ(FloatToF16(value), bits);
    ASSERT_EQ(FloatToF16(-value), bits | 0x8000);
    const float next = bits == 0x7BFF ? 65536.0f : F16ToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = (value + next) / 2;
    ASSERT_EQ(FloatToF16(middle), bits % 2 == 0 ? bits : bits + 1) << value;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 1e9f)), bits + 1);
  }
}

TEST(PackedMatrix, RowsOfABatchHaveTheBitsOfTheRowAlone) {
  for (const WeightFormat format : kFormats) {
    const OwnedMatrix source = RandomMatrix(format, 41, ColsFor(format, 130), 3);
    const PackedMatrix w = Pack(source, format);
    TestRows x(67, w.cols(), 9);
    const size_t width = w.num_panels() * kPanelRows;
    for (const KernelSet* kernels : Variants()) {
      x.Prepare(*kernels);
      for (const bool q8 : {false, true}) {
        if (q8 && !w.UsesQ8(Activations::kQ8)) continue;
        std::vector<float> alone;
        for (size_t r = 0; r < 67; ++r) {
          const auto y = Multiply(*kernels, w, x, r, 1, q8);
          alone.insert(alone.end(), y.begin(), y.end());
        }
        for (size_t rows = 1; rows <= 67; ++rows) {
          const auto y = Multiply(*kernels, w, x, 0, rows, q8);
          ASSERT_EQ(std::memcmp(y.data(), alone.data(), rows * width * sizeof(float)), 0)
              << WeightFormatName(format) << " " << IsaName(kernels->isa) << " q8 " << q8
              << " rows " << rows;
        }
      }
    }
  }
}

TEST(PackedMatrix, AllVariantsGiveTheBitsOfTheScalarTwin) {
  for (const WeightFormat format : kFormats) {
    const OwnedMatrix source = RandomMatrix(format, 70, ColsFor(format, 300), 4);
    const PackedMatrix w = Pack(source, format);
    TestRows x(13, w.cols(), 10);
    for (size_t i = 0; i < w.cols(); i += 3) x.Row(5)[i] *= 1e4f;
    for (const bool q8 : {false, true}) {
      if (q8 && !w.UsesQ8(Activations::kQ8)) continue;
      x.Prepare(*ScalarKernels());
      const auto expected = Multiply(*ScalarKernels(), w, x, 0, 13, q8);
      for (const KernelSet* kernels : Variants()) {
        x.Prepare(*kernels);  // quantisation too
        const auto y = Multiply(*kernels, w, x, 0, 13, q8);
        EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
            << WeightFormatName(format) << " " << IsaName(kernels->isa) << " q8 " << q8;
      }
    }
  }
}

TEST(PackedMatrix, Int8ActivationsStayWithinSixPerMilleOnGaussianInput) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kNVFP4, WeightFormat::kMXFP4,
                                    WeightFormat::kQ4, WeightFormat::kQ6}) {
    const OwnedMatrix source = RandomMatrix(format, 256, 2048, 5);
    const PackedMatrix w = Pack(source, format);
    TestRows x(4, w.cols(), 11);
    const KernelSet& kernels = Kernels();
    x.Prepare(kernels);
    const auto exact = Multiply(kernels, w, x, 0, 4, false),
               y = Multiply(kernels, w, x, 0, 4, true);
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double d = static_cast<double>(y[i]) - static_cast<double>(exact[i]);
      difference += d * d;
      norm += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
    }
    const double relative = std::sqrt(difference / norm);
    EXPECT_LT(relative, 6e-3) << WeightFormatName(format);
    EXPECT_GT(relative, 1e-5) << "the int8 path was not taken";
  }
}

TEST(PackedMatrix, NaNAndInfiniteActivationsPoisonOnlyTheirRow) {
  const OwnedMatrix source = RandomMatrix(WeightFormat::kNVFP4, 16, 64, 6);
  const PackedMatrix w = Pack(source, WeightFormat::kNVFP4);
  TestRows x(3, 64, 12);
  x.Row(0)[40] = std::numeric_limits<float>::quiet_NaN();
  x.Row(1)[3] = std::numeric_limits<float>::infinity();
  for (const KernelSet* kernels : Variants()) {
    x.Prepare(*kernels);
    for (const bool q8 : {false, true}) {
      const auto y = Multiply(*kernels, w, x, 0, 3, q8);
      EXPECT_TRUE(std::isnan(y[0]));
      EXPECT_FALSE(std::isfinite(y[16]));
      EXPECT_TRUE(std::isfinite(y[32]));
    }
  }
}

TEST(PackedMatrix, RefusesNaNScalesAndSizesTheFormatCannotHave) {
  OwnedMatrix nvfp4 = RandomMatrix(WeightFormat::kNVFP4, 16, 64, 1);
  nvfp4.view.name = "model.layers.1.down_proj";
  nvfp4.scales[5] = static_cast<std::byte>(0x7F);
  auto packed = PackedMatrix::Pack(nvfp4.view);
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(packed.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(packed.error().message.find("model.layers.1.down_proj"), std::string::npos);

  OwnedMatrix mxfp4 = RandomMatrix(WeightFormat::kMXFP4, 16, 64, 1);
  mxfp4.scales[0] = static_cast<std::byte>(0xFF);
  EXPECT_FALSE(PackedMatrix::Pack(mxfp4.view).has_value());

  OwnedMatrix fp8 = RandomMatrix(WeightFormat::kFP8, 16, 64, 1);
  fp8.data[7] = static_cast<std::byte>(0xFF);
  EXPECT_FALSE(PackedMatrix::Pack(fp8.view).has_value());

  StoredMatrix odd = RandomMatrix(WeightFormat::kNVFP4, 16, 64, 1).view;
  odd.cols = 40;
  EXPECT_EQ(PackedMatrix::Pack(odd).error().code, ErrorCode::kUnsupported);
  const OwnedMatrix bf16 = RandomMatrix(WeightFormat::kBF16, 16, 64, 1);
  EXPECT_EQ(PackedMatrix::Pack(bf16.view, WeightFormat::kNVFP4).error().code,
            ErrorCode::kUnsupported);
}

TEST(PackedMatrix, F8WithOddScaleBlocksRowScalesAndNoScales) {
  OwnedMatrix m = RandomMatrix(WeightFormat::kFP8, 40, 150, 8);
  for (const auto& [block_rows, block_cols] :
       std::vector<std::pair<size_t, size_t>>{{7, 50}, {1, 150}, {40, 150}, {16, 32}, {3, 192}}) {
    m.view.scale_block_rows = block_rows;
    m.view.scale_block_cols = block_cols;
    std::vector<float> scales(DivCeil(size_t{40}, block_rows) * DivCeil(size_t{150}, block_cols));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 1e-3f * static_cast<float>(i + 1);
    m.view.scales = reinterpret_cast<const std::byte*>(scales.data());
    auto w = PackedMatrix::Pack(m.view);
    ASSERT_TRUE(w.has_value());
    TestRows x(2, 150, 3);
    x.Prepare(Kernels());
    EXPECT_LT(WorstError(Multiply(Kernels(), *w, x, 0, 2, false), 48, Values(m, *w), *w, x, 2),
              1e-6)
        << block_cols;
  }
}

TEST(PackedMatrix, Int4IsHeldExactly) {
  constexpr size_t kRows = 20, kCols = 96, kScales = kRows * kCols / 32;
  OwnedMatrix m;
  std::vector<uint8_t> codes(kRows * kCols / 2);
  std::vector<uint16_t> scales(kScales);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 + i / 16);
  for (size_t i = 0; i < kScales; ++i)
    scales[i] = FloatToBF16(0.01f * static_cast<float>(i + 1) * (i % 3 == 0 ? -1.0f : 1.0f));
  m.view.storage = Storage::kInt4;
  m.view.rows = kRows;
  m.view.cols = kCols;
  m.view.data = reinterpret_cast<const std::byte*>(codes.data());
  m.view.data_bytes = codes.size();
  m.view.scales = reinterpret_cast<const std::byte*>(scales.data());
  m.view.scale_storage = Storage::kBF16;
  m.view.scale_block_cols = 32;
  ASSERT_EQ(PackedMatrix::NaturalFormat(m.view), WeightFormat::kQ4);
  const PackedMatrix packed = Pack(m, WeightFormat::kQ4);
  TestRows unit(1, kCols, 0);
  std::vector<float> row(kCols);
  for (size_t i = 0; i < kCols; ++i) {
    std::fill(unit.Row(0), unit.Row(0) + kCols, 0.0f);
    unit.Row(0)[i] = 1.0f;
    unit.Prepare(*ScalarKernels());
    const auto y = Multiply(*ScalarKernels(), packed, unit, 0, 1, false);
    for (size_t r = 0; r < kRows; ++r) {
      DequantizeRow(m.view, r, row.data());
      ASSERT_EQ(y[r], row[i]) << r << " " << i;
      const int code = codes[(r * kCols + i) / 2] >> (i % 2 * 4) & 15;
      ASSERT_EQ(row[i], static_cast<float>(code - 8) * BF16ToFloat(scales[(r * kCols + i) / 32]));
    }
  }
  // Odd groups are read too, as floats.
  m.view.scale_block_cols = 24;
  EXPECT_EQ(PackedMatrix::NaturalFormat(m.view), WeightFormat::kF32);
}

TEST(Kernels, StartUpCheckKeepsTheChosenVariant) {
  const KernelSet* chosen = KernelsFor(ChooseIsa());
  EXPECT_EQ(Kernels().isa, chosen->isa);
  for (size_t f = 0; f < kNumWeightFormats; ++f) EXPECT_EQ(Kernels().f32[f], chosen->f32[f]) << f;
  EXPECT_EQ(Kernels().swiglu, chosen->swiglu);
}

TEST(Kernels, SwiGluIsAccurateAndTheSameEverywhere) {
  std::vector<float> gate, up;
  for (float g = -120.0f; g <= 120.0f; g += 0.037f) {
    gate.push_back(g);
    up.push_back(1.5f);
  }
  gate.resize(RoundUp(gate.size(), 16), std::numeric_limits<float>::quiet_NaN());
  up.resize(gate.size(), 1.0f);
  std::vector<float> expected(gate.size()), out(gate.size());
  ScalarKernels()->swiglu(gate.data(), up.data(), gate.size(), expected.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const auto g = static_cast<double>(gate[i]);
    const double exact = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
    if (std::isnan(gate[i])) {
      EXPECT_TRUE(std::isnan(expected[i]));
    } else {
      EXPECT_NEAR(static_cast<double>(expected[i]), exact, 1e-6 * std::fabs(exact) + 1e-35) << g;
    }
  }
  for (const KernelSet* kernels : Variants()) {
    kernels->swiglu(gate.data(), up.data(), gate.size(), out.data());
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), (gate.size() - 16) * sizeof(float)), 0)
        << IsaName(kernels->isa);
  }
}

}  // namespace
}  // namespace carpool
