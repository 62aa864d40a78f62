// GGUF's 4-bit and 6-bit integer blocks as codes and scales, for the panels that keep them.
#include "base/check.h"
#include "quant/gguf_blocks.h"

namespace carpool {
namespace {

float Half(const uint8_t* p) { return F16ToFloat(static_cast<uint16_t>(p[0] | p[1] << 8)); }

/// Of the block of so many inputs and bytes that run `run` of 32 inputs lies in.
const uint8_t* Block(const StoredMatrix& m, size_t row, size_t run, size_t inputs, size_t bytes) {
  return reinterpret_cast<const uint8_t*>(m.data) +
         (row * (m.cols / inputs) + run * 32 / inputs) * bytes;
}

}  // namespace

Q4KScales LoadQ4KScales(const std::byte* bytes) {
  const auto* block = reinterpret_cast<const uint8_t*>(bytes);
  const float scale_unit = Half(block), minimum_unit = Half(block + 2);
  const uint8_t* packed = block + 4;  // eight scales and minima of six bits
  Q4KScales out;
  for (size_t j = 0; j < 8; ++j) {
    const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    const int minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    out.scale[j] = scale_unit * static_cast<float>(scale);
    out.minimum[j] = -(minimum_unit * static_cast<float>(minimum));
  }
  return out;
}

GgufRun4 LoadGgufRun4(const StoredMatrix& m, size_t row, size_t run) {
  GgufRun4 out{};
  if (m.storage == Storage::kQ4_K) {
    const size_t j = run % 8;
    const uint8_t* block = Block(m, row, run, 256, 144);
    const Q4KScales scales = LoadQ4KScales(reinterpret_cast<const std::byte*>(block));
    out.scale = scales.scale[j];
    out.minimum = scales.minimum[j];
    const uint8_t* nibbles = block + 16 + j / 2 * 32;
    for (size_t i = 0; i < 32; ++i)
      out.codes[i] = j % 2 == 0 ? nibbles[i] & 15 : static_cast<uint8_t>(nibbles[i] >> 4);
    return out;
  }
  CARPOOL_CHECK(m.storage == Storage::kQ4_0 || m.storage == Storage::kQ4_1);
  const bool has_minimum = m.storage == Storage::kQ4_1;
  const uint8_t* block = Block(m, row, run, 32, has_minimum ? 20 : 18);
  out.scale = Half(block);
  out.minimum = has_minimum ? Half(block + 2) : -8.0f * out.scale;
  const uint8_t* nibbles = block + (has_minimum ? 4 : 2);
  for (size_t i = 0; i < 16; ++i) {
    out.codes[i] = nibbles[i] & 15;
    out.codes[16 + i] = static_cast<uint8_t>(nibbles[i] >> 4);
  }
  return out;
}

GgufRun6 LoadGgufRun6(const StoredMatrix& m, size_t row, size_t run) {
  CARPOOL_CHECK(m.storage == Storage::kQ6_K);
  const uint8_t* block = Block(m, row, run, 256, 210);
  // Halves of 128 inputs: 64 bytes of low nibbles, 32 of upper bits, 8 scales; run q of a half has
  // its upper bits at 2 q.
  const size_t half = run % 8 / 4, q = run % 4;
  const uint8_t* low = block + half * 64 + q % 2 * 32;
  const uint8_t* high = block + 128 + half * 32;
  GgufRun6 out{};
  for (size_t i = 0; i < 32; ++i) {
    const int nibble = q < 2 ? low[i] & 15 : low[i] >> 4;
    out.codes[i] = static_cast<uint8_t>(nibble | (high[i] >> (2 * q) & 3) << 4);
  }
  for (size_t s = 0; s < 2; ++s) {
    const auto scale = static_cast<int8_t>(block[192 + half * 8 + q * 2 + s]);
    out.scales[s] = Half(block + 208) * static_cast<float>(scale);
  }
  return out;
}

}  // namespace carpool
