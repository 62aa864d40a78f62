// GGUF block formats against a second decoder that looks up every weight on its own, bit by bit.
#include "quant/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "quant/packed_matrix.h"

namespace carpool {
namespace {

std::vector<std::byte> Hex(std::string_view text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  return bytes;
}

/// A block as a string of bits, least significant first.
class BlockBits {
 public:
  explicit BlockBits(const std::byte* block) : block_(block) {}
  unsigned Get(size_t byte, size_t bit, size_t count) const {
    unsigned value = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t at = byte * 8 + bit + i;
      const unsigned one = static_cast<unsigned>(block_[at / 8]) >> at % 8 & 1u;
      value |= one << i;
    }
    return value;
  }
  double Half(size_t byte) const {
    const unsigned mantissa = Get(byte, 0, 10), exponent = Get(byte, 10, 5);
    const double value = exponent == 0
                             ? std::ldexp(mantissa, -24)
                             : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    return Get(byte, 15, 1) != 0 ? -value : value;
  }
  int Signed(size_t byte) const {
    const unsigned value = Get(byte, 0, 8);
    return value < 128 ? static_cast<int>(value) : static_cast<int>(value) - 256;
  }

 private:
  const std::byte* block_;
};

double E2M1(unsigned code) {
  const double magnitudes[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

constexpr int kTable[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// Weight i of one block, rounded where ggml rounds: scales as products in fp32, then one product
/// and one sum.
float SlowWeight(Storage storage, const std::byte* block, size_t i) {
  const BlockBits b(block);
  const auto f = [](double x) { return static_cast<float>(x); };
  const auto nibble = [&](size_t base, size_t at) {  // 32 codes in 16 bytes
    return b.Get(base + at % 16, at < 16 ? 0 : 4, 4);
  };
  const auto k_scale = [&](size_t base, size_t j) {
    return j < 4 ? b.Get(base + j, 0, 6)
                 : b.Get(base + j + 4, 0, 4) | b.Get(base + j - 4, 6, 2) << 4;
  };
  const auto k_min = [&](size_t base, size_t j) {
    return j < 4 ? b.Get(base + j + 4, 0, 6)
                 : b.Get(base + j + 4, 4, 4) | b.Get(base + j, 6, 2) << 4;
  };
  const size_t in_half = i % 128, sub = i / 32;
  switch (storage) {
    case Storage::kQ4_0:
      return f(b.Half(0) * (static_cast<int>(nibble(2, i)) - 8));
    case Storage::kQ4_1:
      return f(b.Half(0) * nibble(4, i) + b.Half(2));
    case Storage::kQ5_0:
      return f(b.Half(0) * (static_cast<int>(nibble(6, i) | b.Get(2, i, 1) << 4) - 16));
    case Storage::kQ5_1:
      return f(b.Half(0) * (nibble(8, i) | b.Get(4, i, 1) << 4) + b.Half(2));
    case Storage::kQ8_0:
      return f(b.Half(0) * b.Signed(2 + i));
    case Storage::kQ2_K: {
      const unsigned q = b.Get(16 + i / 128 * 32 + i % 32, in_half / 32 * 2, 2);
      return f(b.Half(80) * b.Get(i / 16, 0, 4)) * f(q) - f(b.Half(82) * b.Get(i / 16, 4, 4));
    }
    case Storage::kQ3_K: {
      const size_t group = i / 16;
      const unsigned low = b.Get(96 + group % 8, group < 8 ? 0 : 4, 4);
      const unsigned high = b.Get(104 + group % 4, group / 4 * 2, 2);
      const unsigned q = b.Get(32 + i / 128 * 32 + i % 32, in_half / 32 * 2, 2);
      const int code = static_cast<int>(q) - (b.Get(i % 32, sub, 1) != 0 ? 0 : 4);
      return f(b.Half(108) * (static_cast<int>(low + high * 16) - 32)) * f(code);
    }
    case Storage::kQ4_K: {
      const unsigned q = b.Get(16 + i / 64 * 32 + i % 32, sub % 2 * 4, 4);
      return f(b.Half(0) * k_scale(4, sub)) * f(q) - f(b.Half(2) * k_min(4, sub));
    }
    case Storage::kQ5_K: {
      const unsigned q =
          b.Get(48 + i / 64 * 32 + i % 32, sub % 2 * 4, 4) + b.Get(16 + i % 32, sub, 1) * 16;
      return f(b.Half(0) * k_scale(4, sub)) * f(q) - f(b.Half(2) * k_min(4, sub));
    }
    case Storage::kQ6_K: {
      const size_t half = i / 128;
      const unsigned low = b.Get(64 * half + in_half % 64, in_half / 64 * 4, 4);
      const unsigned high = b.Get(128 + 32 * half + i % 32, in_half / 32 * 2, 2);
      const int q = static_cast<int>(low + high * 16) - 32;
      return f(b.Half(208) * b.Signed(192 + i / 16)) * f(q);
    }
    case Storage::kIQ4_NL:
      return f(b.Half(0) * kTable[nibble(2, i)]);
    case Storage::kIQ4_XS: {
      const unsigned scale = b.Get(4 + sub / 2, sub % 2 * 4, 4) + b.Get(2, 2 * sub, 2) * 16;
      return f(b.Half(0) * (static_cast<int>(scale) - 32)) *
             f(kTable[nibble(8 + sub * 16, i % 32)]);
    }
    case Storage::kGgufMXFP4:
      return f(std::ldexp(E2M1(nibble(1, i)), static_cast<int>(b.Get(0, 0, 8)) - 127));
    case Storage::kGgufNVFP4: {
      const size_t s = i / 16, at = i % 16;
      const unsigned mantissa = b.Get(s, 0, 3), exponent = b.Get(s, 3, 4);
      if (mantissa == 7 && exponent == 15) return 0.0f;
      const double scale = exponent == 0
                               ? std::ldexp(mantissa, -9)
                               : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
      return f(scale * E2M1(b.Get(4 + 8 * s + at % 8, at < 8 ? 0 : 4, 4)));
    }
    default:
      ADD_FAILURE() << StorageName(storage) << " has no slow decoder";
      return 0.0f;
  }
}

/// Bytes where each fp16 factor lies.
const std::map<Storage, std::vector<size_t>> kHalves = {
    {Storage::kQ4_0, {0}},     {Storage::kQ4_1, {0, 2}}, {Storage::kQ5_0, {0}},
    {Storage::kQ5_1, {0, 2}},  {Storage::kQ8_0, {0}},    {Storage::kQ2_K, {80, 82}},
    {Storage::kQ3_K, {108}},   {Storage::kQ4_K, {0, 2}}, {Storage::kQ5_K, {0, 2}},
    {Storage::kQ6_K, {208}},   {Storage::kIQ4_NL, {0}},  {Storage::kIQ4_XS, {0}},
    {Storage::kGgufMXFP4, {}}, {Storage::kGgufNVFP4, {}}};

/// Random blocks whose factors are finite.
std::vector<std::byte> RandomBlocks(Storage storage, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t block_bytes = GgufBlockBytes(storage);
  std::vector<std::byte> bytes(count * block_bytes);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t b = 0; b < count; ++b) {
    std::byte* block = bytes.data() + b * block_bytes;
    for (const size_t at : kHalves.at(storage)) {
      if ((block[at + 1] & std::byte{0x7C}) == std::byte{0x7C}) block[at + 1] &= std::byte{0xBF};
    }
    if (storage == Storage::kGgufMXFP4 && block[0] == std::byte{255}) block[0] = std::byte{100};
  }
  return bytes;
}

TEST(GgufBlocks, EveryTypeMatchesTheSlowDecoder) {
  size_t types = 0;
  for (const GgmlType& type : GgmlTypes()) {
    if (!type.storage || !IsGgufBlock(*type.storage)) continue;
    ++types;
    const size_t count = 300, n = count * type.block_inputs;
    const auto bytes = RandomBlocks(*type.storage, count, type.id);
    std::vector<float> out(n, NAN);
    DecodeGgufBlocks(*type.storage, bytes.data(), n, out.data());
    for (size_t i = 0; i < n; ++i) {
      const std::byte* block = bytes.data() + i / type.block_inputs * type.block_bytes;
      ASSERT_EQ(out[i], SlowWeight(*type.storage, block, i % type.block_inputs))
          << type.name << " weight " << i;
    }
  }
  EXPECT_EQ(types, 14u);
}

TEST(GgufBlocks, Nvfp4VectorHasTheModelOptValues) {
  // 0.1 (i - 7), i = 0 … 15, through block scale 448 and a tensor scale of 2.9761906e-4.
  auto bytes =
      Hex("7e000000"
          "1f3e4e5d6c6b7970");
  bytes.resize(36);
  std::vector<float> out(64);
  DecodeGgufBlocks(Storage::kGgufNVFP4, bytes.data(), 64, out.data());
  const double wanted[] = {-0.8,      -0.533333, -0.533333, -0.4, -0.266667, -0.2,
                           -0.066667, 0,         0.066667,  0.2,  0.266667,  0.4,
                           0.533333,  0.533333,  0.8,       0.8};
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(out[i] * 2.9761906e-4, wanted[i], 1e-6) << i;
  std::vector<std::byte> codes(32), scales(4);
  SplitFp4Blocks(Storage::kGgufNVFP4, bytes.data(), 64, codes.data(), scales.data());
  codes.resize(8);
  EXPECT_EQ(codes, Hex("efdebc0931546677"));
  EXPECT_EQ(scales, Hex("7e000000"));
}

TEST(GgufBlocks, Mxfp4ScalesArePowersOfTwo) {
  auto bytes =
      Hex("82"
          "21436587a9cbed0f0000000000000000");
  std::vector<float> out(32);
  DecodeGgufBlocks(Storage::kGgufMXFP4, bytes.data(), 32, out.data());
  const float low[] = {0.5f, 1.5f, 3.0f, 6.0f, -0.5f, -1.5f, -3.0f, -6.0f};
  const float high[] = {1.0f, 2.0f, 4.0f, -0.0f, -1.0f, -2.0f, -4.0f, 0.0f};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(out[i], 8 * low[i]) << i;
    EXPECT_EQ(out[16 + i], 8 * high[i]) << i;
  }
}

TEST(GgufBlocks, SplitFp4KeepsEveryValue) {
  for (const Storage storage : {Storage::kGgufMXFP4, Storage::kGgufNVFP4}) {
    const size_t n = 40 * 64, run = storage == Storage::kGgufMXFP4 ? 32 : 16;
    const auto bytes = RandomBlocks(storage, n / GgufBlockInputs(storage), 7);
    std::vector<std::byte> codes(n / 2), scales(n / run);
    SplitFp4Blocks(storage, bytes.data(), n, codes.data(), scales.data());
    StoredMatrix m;
    m.storage = storage == Storage::kGgufMXFP4 ? Storage::kMXFP4 : Storage::kNVFP4;
    m.rows = 1;
    m.cols = n;
    m.data = codes.data();
    m.scales = scales.data();
    std::vector<float> plain(n), blocks(n);
    DequantizeRow(m, 0, plain.data());
    DecodeGgufBlocks(storage, bytes.data(), n, blocks.data());
    EXPECT_EQ(plain, blocks);
  }
}

StoredMatrix View(Storage storage, size_t rows, size_t cols, const std::vector<std::byte>& bytes) {
  StoredMatrix m;
  m.name = "w";
  m.storage = storage;
  m.rows = rows;
  m.cols = cols;
  m.data = bytes.data();
  m.data_bytes = bytes.size();
  return m;
}

TEST(GgufBlocks, EveryTypePacks) {
  for (const GgmlType& type : GgmlTypes()) {
    if (!type.storage || !IsGgufBlock(*type.storage)) continue;
    const size_t rows = 5, cols = 256;
    const auto bytes = RandomBlocks(*type.storage, rows * cols / type.block_inputs, 3);
    StoredMatrix m = View(*type.storage, rows, cols, bytes);
    m.global_scale = 0.5f;
    const auto packed = PackedMatrix::Pack(m);
    ASSERT_TRUE(packed) << packed.error().message;
    const bool fp4 = type.storage == Storage::kGgufMXFP4 || type.storage == Storage::kGgufNVFP4;
    EXPECT_EQ(WeightFormatName(packed->format()),
              fp4 ? StorageName(*type.storage) : std::string_view("q8"));
  }
}

TEST(GgufBlocks, Fp4PanelsEqualThoseOfTheSafetensorsLayout) {
  const size_t rows = 21, cols = 192;
  for (const Storage storage : {Storage::kGgufMXFP4, Storage::kGgufNVFP4}) {
    const bool mx = storage == Storage::kGgufMXFP4;
    const auto bytes = RandomBlocks(storage, rows * cols / GgufBlockInputs(storage), 5);
    const StoredMatrix from_gguf = View(storage, rows, cols, bytes);
    std::vector<std::byte> codes(rows * cols / 2), scales(rows * cols / (mx ? 32 : 16));
    SplitFp4Blocks(storage, bytes.data(), rows * cols, codes.data(), scales.data());
    StoredMatrix plain = View(mx ? Storage::kMXFP4 : Storage::kNVFP4, rows, cols, codes);
    plain.scales = scales.data();
    const auto a = PackedMatrix::Pack(from_gguf), b = PackedMatrix::Pack(plain);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->bytes(), b->bytes());
    EXPECT_EQ(std::memcmp(a->panels(), b->panels(), a->bytes()), 0);
  }
}

TEST(GgufBlocks, WeightsThatAreNotFiniteAreRefused) {
  auto bytes = RandomBlocks(Storage::kQ8_0, 4, 1);
  bytes[2 * 34 + 1] = std::byte{0x7C};
  bytes[2 * 34] = std::byte{0};
  bytes[2 * 34 + 2] = std::byte{1};
  const auto q8 = PackedMatrix::Pack(View(Storage::kQ8_0, 2, 64, bytes));
  ASSERT_FALSE(q8);
  EXPECT_EQ(q8.error().message, "w: weight [1, 0] is inf, which int8 blocks cannot hold");
  auto mx = RandomBlocks(Storage::kGgufMXFP4, 4, 1);
  mx[3 * 17] = std::byte{255};
  const auto fp4 = PackedMatrix::Pack(View(Storage::kGgufMXFP4, 2, 64, mx));
  ASSERT_FALSE(fp4);
  EXPECT_EQ(fp4.error().message, "w: block scale 3 is nan; wanted a finite number");
}

TEST(GgufBlocks, TypesAreKnownById) {
  ASSERT_NE(FindGgmlType(12), nullptr);
  EXPECT_EQ(FindGgmlType(12)->name, "Q4_K");
  EXPECT_EQ(FindGgmlType(4), nullptr);  // taken away from ggml
  EXPECT_EQ(FindGgmlType(1000), nullptr);
  EXPECT_FALSE(FindGgmlType(16)->storage.has_value());
}

}  // namespace
}  // namespace carpool
