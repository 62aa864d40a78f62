#include "quant/random_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/aligned.h"
#include "base/check.h"

namespace carpool {
namespace {

/// splitmix64.
struct Random {
  uint64_t state;
  uint64_t Next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Sum of four uniforms: bell-shaped, variance 1.
  float NextBell() {
    const uint64_t bits = Next();
    float sum = 0.0f;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>((bits >> (16 * k)) & 0xFFFF);
    return (sum / 65535.0f - 2.0f) * 1.7320508f;
  }
};

void FillWords(std::vector<std::byte>& bytes, Random& random) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, bytes.size() - i));
  }
}

void StoreHalf(std::vector<std::byte>& bytes, size_t at, float value) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(bytes.data() + at, &bits, sizeof(bits));
}

}  // namespace

OwnedMatrix RandomMatrix(WeightFormat format, size_t rows, size_t cols, uint64_t seed) {
  Random random{seed};
  OwnedMatrix m;
  StoredMatrix& v = m.view;
  v.name = "random";
  v.rows = rows;
  v.cols = cols;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  switch (format) {
    case WeightFormat::kF32:
      v.storage = Storage::kF32;
      m.data.resize(rows * cols * 4);
      for (size_t i = 0; i < rows * cols; ++i) {
        const float w = random.NextBell() * deviation;
        std::memcpy(m.data.data() + i * 4, &w, 4);
      }
      break;
    case WeightFormat::kBF16:
    case WeightFormat::kQ8:
      v.storage = Storage::kBF16;
      m.data.resize(rows * cols * 2);
      for (size_t i = 0; i < rows * cols; ++i) {
        const uint16_t w = FloatToBF16(random.NextBell() * deviation);
        std::memcpy(m.data.data() + i * 2, &w, 2);
      }
      break;
    case WeightFormat::kFP8: {
      v.storage = Storage::kF8E4M3;
      m.data.resize(rows * cols);
      FillWords(m.data, random);
      for (auto& b : m.data) {
        if ((static_cast<uint8_t>(b) & 0x7F) == 0x7F) b = static_cast<std::byte>(0x38);
      }
      v.scale_block_rows = v.scale_block_cols = 128;
      const size_t n = DivCeil(rows, 128) * DivCeil(cols, 128);
      m.scales.resize(n * 4);
      for (size_t i = 0; i < n;
           ++i) {  // codes uniform in their bits have a root mean square near 121
        const float scale =
            deviation / 121.0f * (1.0f + static_cast<float>(random.Next() % 1024) / 1024.0f);
        std::memcpy(m.scales.data() + i * 4, &scale, 4);
      }
      break;
    }
    case WeightFormat::kNVFP4:
      CARPOOL_CHECK(cols % 16 == 0);
      v.storage = Storage::kNVFP4;
      m.data.resize(rows * cols / 2);
      FillWords(m.data, random);
      m.scales.resize(rows * cols / 16);
      FillWords(m.scales, random);
      for (auto& b : m.scales)
        b = static_cast<std::byte>(0x38 + (static_cast<uint8_t>(b) & 7));  // 1 ... 1.875
      v.global_scale = deviation / 4.1f;
      break;
    case WeightFormat::kMXFP4: {
      CARPOOL_CHECK(cols % 32 == 0);
      v.storage = Storage::kMXFP4;
      m.data.resize(rows * cols / 2);
      FillWords(m.data, random);
      m.scales.resize(rows * cols / 32);
      FillWords(m.scales, random);
      const int exponent = 127 - static_cast<int>(std::lround(std::log2(2.9f / deviation)));
      for (auto& b : m.scales) b = static_cast<std::byte>(exponent - (static_cast<int>(b) & 1));
      break;
    }
    case WeightFormat::kQ4: {
      // Q4_K where the width allows it, else Q4_1.
      const bool k_blocks = cols % 256 == 0;
      v.storage = k_blocks ? Storage::kQ4_K : Storage::kQ4_1;
      const size_t block = k_blocks ? 144 : 20, inputs = k_blocks ? 256 : 32;
      CARPOOL_CHECK(cols % inputs == 0);
      m.data.resize(rows * (cols / inputs) * block);
      FillWords(m.data, random);
      // Codes have a deviation of 4.6 around 7.5; the K types' scales are 6-bit numbers around 32.
      const float d = deviation / 4.6f / (k_blocks ? 32.0f : 1.0f);
      for (size_t b = 0; b < m.data.size(); b += block) {
        const float vary = 1.0f + static_cast<float>(random.Next() % 1024) / 1024.0f;
        StoreHalf(m.data, b, d * vary);
        StoreHalf(m.data, b + 2, (k_blocks ? 7.5f : -7.5f) * d * vary);
      }
      break;
    }
    case WeightFormat::kQ6: {
      CARPOOL_CHECK(cols % 256 == 0);
      v.storage = Storage::kQ6_K;
      constexpr size_t kBlock = 210;
      m.data.resize(rows * (cols / 256) * kBlock);
      FillWords(m.data, random);
      for (size_t b = 0; b < m.data.size(); b += kBlock) {
        const float vary = 1.0f + static_cast<float>(random.Next() % 1024) / 1024.0f;
        StoreHalf(m.data, b + 208, deviation / 18.5f / 64.0f * vary);
      }
      break;
    }
  }
  v.data = m.data.data();
  v.data_bytes = m.data.size();
  v.scales = m.scales.empty() ? nullptr : m.scales.data();
  return m;
}

}  // namespace carpool
