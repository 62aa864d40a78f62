#include "quant/gguf_decoders.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "quant/stored_matrix.h"

namespace carpool {
namespace {

float Half(const uint8_t* p) {
  return F16ToFloat(static_cast<uint16_t>(p[0] | static_cast<unsigned>(p[1]) << 8));
}

/// The code of input i of 32 in 16 bytes: the first half in the low nibbles.
unsigned Nibble32(const uint8_t* qs, size_t i) { return i < 16 ? qs[i] & 15u : qs[i - 16] >> 4; }

constexpr std::array<int8_t, 16> kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

void FiveBit(const uint8_t* qh, const uint8_t* qs, float d, float offset, float m, float* out) {
  uint32_t high;
  std::memcpy(&high, qh, sizeof(high));
  for (size_t i = 0; i < 32; ++i) {
    const unsigned q = Nibble32(qs, i) | (high >> i & 1u) << 4;
    out[i] = (static_cast<float>(q) - offset) * d + m;
  }
}

struct ScaleMin {
  float scale;
  float min;
};
/// The 6-bit scale and minimum of sub-block j of 8, packed in 12 bytes.
ScaleMin ScaleMinOf(const uint8_t* s, size_t j) {
  unsigned scale, min;
  if (j < 4) {
    scale = s[j] & 63u;
    min = s[j + 4] & 63u;
  } else {
    scale = (s[j + 4] & 15u) | static_cast<unsigned>(s[j - 4] >> 6) << 4;
    min = static_cast<unsigned>(s[j + 4] >> 4) | static_cast<unsigned>(s[j] >> 6) << 4;
  }
  return {static_cast<float>(scale), static_cast<float>(min)};
}

}  // namespace

void DecodeQ4_0(const uint8_t* b, float* out) {
  const float d = Half(b);
  for (size_t i = 0; i < 32; ++i) out[i] = (static_cast<float>(Nibble32(b + 2, i)) - 8.0f) * d;
}

void DecodeQ4_1(const uint8_t* b, float* out) {
  const float d = Half(b), m = Half(b + 2);
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<float>(Nibble32(b + 4, i)) * d + m;
}

void DecodeQ5_0(const uint8_t* b, float* out) { FiveBit(b + 2, b + 6, Half(b), 16.0f, 0.0f, out); }
void DecodeQ5_1(const uint8_t* b, float* out) {
  FiveBit(b + 4, b + 8, Half(b), 0.0f, Half(b + 2), out);
}

void DecodeQ8_0(const uint8_t* b, float* out) {
  const float d = Half(b);
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

void DecodeQ2_K(const uint8_t* b, float* out) {
  const uint8_t *scales = b, *qs = b + 16;
  const float d = Half(b + 80), dmin = Half(b + 82);
  for (size_t group = 0; group < 16; ++group) {
    // Eight groups share 32 bytes: two bits each, two groups side by side.
    const uint8_t* q = qs + group / 8 * 32 + group % 2 * 16;
    const size_t shift = group % 8 / 2 * 2;
    const float scale = d * static_cast<float>(scales[group] & 15);
    const float min = dmin * static_cast<float>(scales[group] >> 4);
    for (size_t i = 0; i < 16; ++i)
      out[group * 16 + i] = scale * static_cast<float>(q[i] >> shift & 3) - min;
  }
}

void DecodeQ3_K(const uint8_t* b, float* out) {
  const uint8_t *hmask = b, *qs = b + 32, *s = b + 96;
  const float d = Half(b + 108);
  for (size_t group = 0; group < 16; ++group) {
    const unsigned low = group < 8 ? s[group] & 15u : s[group - 8] >> 4;
    const unsigned high = s[8 + group % 4] >> (group / 4 * 2) & 3u;
    const float scale = d * (static_cast<float>(low | high << 4) - 32.0f);
    const uint8_t* q = qs + group / 8 * 32 + group % 2 * 16;
    const uint8_t* h = hmask + group % 2 * 16;
    const size_t shift = group % 8 / 2 * 2, bit = group / 2;
    for (size_t i = 0; i < 16; ++i) {
      const int code = (q[i] >> shift & 3) - ((h[i] >> bit & 1) != 0 ? 0 : 4);
      out[group * 16 + i] = scale * static_cast<float>(code);
    }
  }
}

void DecodeQ4_K(const uint8_t* b, float* out) {
  const float d = Half(b), dmin = Half(b + 2);
  for (size_t j = 0; j < 8; ++j) {
    const ScaleMin sm = ScaleMinOf(b + 4, j);
    const float scale = d * sm.scale, min = dmin * sm.min;
    const uint8_t* q = b + 16 + j / 2 * 32;
    const size_t shift = j % 2 * 4;
    for (size_t i = 0; i < 32; ++i)
      out[j * 32 + i] = scale * static_cast<float>(q[i] >> shift & 15) - min;
  }
}

void DecodeQ5_K(const uint8_t* b, float* out) {
  const float d = Half(b), dmin = Half(b + 2);
  const uint8_t* qh = b + 16;
  for (size_t j = 0; j < 8; ++j) {
    const ScaleMin sm = ScaleMinOf(b + 4, j);
    const float scale = d * sm.scale, min = dmin * sm.min;
    const uint8_t* q = b + 48 + j / 2 * 32;
    const size_t shift = j % 2 * 4;
    for (size_t i = 0; i < 32; ++i) {
      const int code = (q[i] >> shift & 15) + (qh[i] >> j & 1) * 16;
      out[j * 32 + i] = scale * static_cast<float>(code) - min;
    }
  }
}

void DecodeQ6_K(const uint8_t* b, float* out) {
  const float d = Half(b + 208);
  for (size_t half = 0; half < 2; ++half) {
    const uint8_t *ql = b + 64 * half, *qh = b + 128 + 32 * half, *sc = b + 192 + 8 * half;
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      for (size_t i = 0; i < 32; ++i) {
        const int low = ql[i + quarter % 2 * 32] >> (quarter / 2 * 4) & 15;
        const int high = qh[i] >> (quarter * 2) & 3;
        const float scale = d * static_cast<float>(static_cast<int8_t>(sc[quarter * 2 + i / 16]));
        out[half * 128 + quarter * 32 + i] = scale * static_cast<float>((low | high << 4) - 32);
      }
    }
  }
}

void DecodeIQ4_NL(const uint8_t* b, float* out) {
  const float d = Half(b);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kNonLinear[Nibble32(b + 2, i)]);
}

void DecodeIQ4_XS(const uint8_t* b, float* out) {
  const float d = Half(b);
  const unsigned scales_h = b[2] | static_cast<unsigned>(b[3]) << 8;
  for (size_t j = 0; j < 8; ++j) {
    const unsigned low = b[4 + j / 2] >> (j % 2 * 4) & 15u;
    const unsigned code = low | (scales_h >> (2 * j) & 3u) << 4;
    const float scale = d * (static_cast<float>(code) - 32.0f);
    for (size_t i = 0; i < 32; ++i)
      out[j * 32 + i] = scale * static_cast<float>(kNonLinear[Nibble32(b + 8 + j * 16, i)]);
  }
}

void DecodeMXFP4(const uint8_t* b, float* out) {
  const float scale = E8M0ToFloat(b[0]);
  for (size_t i = 0; i < 32; ++i)
    out[i] = E2M1ToFloat(static_cast<uint8_t>(Nibble32(b + 1, i))) * scale;
}

void DecodeNVFP4(const uint8_t* b, float* out) {
  for (size_t s = 0; s < 4; ++s) {
    const uint8_t bits = b[s] & 0x7F;  // the sign is not used
    const float scale = bits == 0x7F ? 0.0f : F8E4M3ToFloat(bits);
    for (size_t i = 0; i < 16; ++i) {
      const uint8_t byte = b[4 + s * 8 + i % 8];
      out[s * 16 + i] = E2M1ToFloat(i < 8 ? byte & 15 : byte >> 4) * scale;
    }
  }
}

}  // namespace carpool
