// Decoding of every checkpoint storage, one element at a time: the readable definition the kernels
// are tested against.
#include "quant/stored_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/aligned.h"
#include "quant/gguf_blocks.h"

namespace carpool {
namespace {

template <typename T>
T LoadAt(const std::byte* base, size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

uint8_t CodeAt(const std::byte* row, size_t i) {
  const auto byte = static_cast<uint8_t>(row[i / 2]);
  return (i % 2 == 0) ? (byte & 0x0F) : (byte >> 4);
}

size_t FloatIndex(const StoredMatrix& m, size_t row, size_t col) {
  return row * m.RowStride() + col * m.col_stride;
}

size_t NumScales(const StoredMatrix& m) {
  switch (m.storage) {
    case Storage::kNVFP4:
      return m.rows * (m.cols / 16);
    case Storage::kMXFP4:
      return m.rows * (m.cols / 32);
    case Storage::kF8E4M3:
    case Storage::kInt8:
      return m.scales == nullptr
                 ? 0
                 : DivCeil(m.rows, m.scale_block_rows) * DivCeil(m.cols, m.scale_block_cols);
    case Storage::kInt4:
      return m.rows * (m.cols / m.scale_block_cols);
    default:
      return 0;
  }
}

}  // namespace

float BlockScaleAt(const StoredMatrix& m, size_t index) {
  if (m.scale_storage == Storage::kF32) return LoadAt<float>(m.scales, index);
  const auto bits = LoadAt<uint16_t>(m.scales, index);
  return m.scale_storage == Storage::kBF16 ? BF16ToFloat(bits) : F16ToFloat(bits);
}

std::string_view StorageName(Storage storage) {
  switch (storage) {
    case Storage::kF32:
      return "f32";
    case Storage::kBF16:
      return "bf16";
    case Storage::kF16:
      return "f16";
    case Storage::kF8E4M3:
      return "fp8";
    case Storage::kNVFP4:
      return "nvfp4";
    case Storage::kMXFP4:
    case Storage::kGgufMXFP4:
      return "mxfp4";
    case Storage::kInt8:
      return "q8";
    case Storage::kGgufNVFP4:
      return "nvfp4";
    case Storage::kQ4_0:
      return "q4_0";
    case Storage::kQ4_1:
      return "q4_1";
    case Storage::kQ5_0:
      return "q5_0";
    case Storage::kQ5_1:
      return "q5_1";
    case Storage::kQ8_0:
      return "q8_0";
    case Storage::kQ2_K:
      return "q2_k";
    case Storage::kQ3_K:
      return "q3_k";
    case Storage::kQ4_K:
      return "q4_k";
    case Storage::kQ5_K:
      return "q5_k";
    case Storage::kQ6_K:
      return "q6_k";
    case Storage::kIQ4_NL:
      return "iq4_nl";
    case Storage::kIQ4_XS:
      return "iq4_xs";
    case Storage::kInt4:
      return "int4";
  }
  return "?";
}

size_t StoredMatrix::TotalBytes() const {
  const size_t n = NumScales(*this);
  switch (storage) {
    case Storage::kF8E4M3:
    case Storage::kInt8:
    case Storage::kInt4:
      return data_bytes + n * (scale_storage == Storage::kF32 ? 4 : 2);
    case Storage::kNVFP4:
      return data_bytes + n + sizeof(float);
    case Storage::kMXFP4:
      return data_bytes + n;
    default:
      return data_bytes;
  }
}

float F8E4M3ToFloat(uint8_t bits) {
  const int exponent = (bits >> 3) & 0x0F;
  const int mantissa = bits & 0x07;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                    : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

float BF16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

float E8M0ToFloat(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, static_cast<int>(bits) - 127);
}

float E2M1ToFloat(uint8_t code) {
  static constexpr float kMagnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitude[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

uint16_t FloatToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x0040);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

uint16_t FloatToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return sign | 0x7E00;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  if (magnitude < 0x1p-14f) {  // in units of the smallest subnormal; 1024 carries into the exponent
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  }
  const uint32_t rounded = (bits & 0x7FFFFFFFu) + 0x0FFFu + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

void DequantizeRow(const StoredMatrix& m, size_t row, float* out) {
  switch (m.storage) {
    case Storage::kF32:
      for (size_t i = 0; i < m.cols; ++i) out[i] = LoadAt<float>(m.data, FloatIndex(m, row, i));
      break;
    case Storage::kBF16:
      for (size_t i = 0; i < m.cols; ++i)
        out[i] = BF16ToFloat(LoadAt<uint16_t>(m.data, FloatIndex(m, row, i)));
      break;
    case Storage::kF16:
      for (size_t i = 0; i < m.cols; ++i)
        out[i] = F16ToFloat(LoadAt<uint16_t>(m.data, FloatIndex(m, row, i)));
      break;
    case Storage::kF8E4M3:
    case Storage::kInt8: {
      const size_t per_row = m.scales == nullptr ? 0 : DivCeil(m.cols, m.scale_block_cols);
      for (size_t i = 0; i < m.cols; ++i) {
        const auto code = LoadAt<uint8_t>(m.data, row * m.cols + i);
        const float w = m.storage == Storage::kInt8 ? static_cast<float>(static_cast<int8_t>(code))
                                                    : F8E4M3ToFloat(code);
        const float scale =
            m.scales == nullptr
                ? 1.0f
                : BlockScaleAt(m, row / m.scale_block_rows * per_row + i / m.scale_block_cols);
        out[i] = w * (scale * m.global_scale);
      }
      break;
    }
    case Storage::kNVFP4: {
      const std::byte* codes = m.data + row * (m.cols / 2);
      for (size_t i = 0; i < m.cols; ++i) {
        const float scale =
            F8E4M3ToFloat(LoadAt<uint8_t>(m.scales, row * (m.cols / 16) + i / 16)) * m.global_scale;
        out[i] = E2M1ToFloat(CodeAt(codes, i)) * scale;
      }
      break;
    }
    case Storage::kMXFP4: {
      const std::byte* codes = m.data + row * (m.RowStride() / 2);
      for (size_t i = 0; i < m.cols; ++i) {
        const float scale =
            E8M0ToFloat(LoadAt<uint8_t>(m.scales, row * (m.RowStride() / 32) + i / 32)) *
            m.global_scale;
        out[i] = E2M1ToFloat(CodeAt(codes, i)) * scale;
      }
      break;
    }
    case Storage::kInt4: {
      const std::byte* codes = m.data + row * (m.cols / 2);
      const size_t per_row = m.cols / m.scale_block_cols;
      for (size_t i = 0; i < m.cols; ++i) {
        const float scale = BlockScaleAt(m, row * per_row + i / m.scale_block_cols);
        out[i] = static_cast<float>(CodeAt(codes, i) - 8) * scale;
      }
      break;
    }
    default: {
      const size_t row_bytes =
          m.RowStride() / GgufBlockInputs(m.storage) * GgufBlockBytes(m.storage);
      DecodeGgufBlocks(m.storage, m.data + row * row_bytes, m.cols, out);
      if (m.global_scale == 1.0f) break;
      for (size_t i = 0; i < m.cols; ++i) out[i] *= m.global_scale;
      break;
    }
  }
}

Status ValidateScales(const StoredMatrix& m) {
  const size_t block = m.storage == Storage::kNVFP4   ? 16
                       : m.storage == Storage::kMXFP4 ? 32
                       : IsGgufBlock(m.storage)       ? GgufBlockInputs(m.storage)
                                                      : 1;
  if (m.cols % block != 0) {
    return MakeError(ErrorCode::kUnsupported, "{}: {} needs a multiple of {} inputs, got {}",
                     m.name, StorageName(m.storage), block, m.cols);
  }
  if (!std::isfinite(m.global_scale)) {
    return MakeError(ErrorCode::kCorrupt, "{}: the tensor's scale is {}, wanted a finite number",
                     m.name, m.global_scale);
  }
  if (m.row_stride != 0 && m.storage == Storage::kMXFP4 && m.row_stride != m.cols) {
    for (size_t row = 0; row < m.rows; ++row) {
      StoredMatrix one = m;
      one.rows = 1;
      one.row_stride = 0;
      one.scales = m.scales + row * (m.row_stride / 32);
      RETURN_IF_ERROR(ValidateScales(one));
    }
    return {};
  }
  if (m.storage == Storage::kGgufMXFP4) {
    const size_t bytes = GgufBlockBytes(m.storage), blocks = m.rows * (m.cols / block);
    for (size_t i = 0; i < blocks; ++i) {
      if (static_cast<uint8_t>(m.data[i * bytes]) != 255) continue;
      return MakeError(ErrorCode::kCorrupt, "{}: block scale {} is nan; wanted a finite number",
                       m.name, i);
    }
  }
  const size_t n = NumScales(m);
  if (m.storage == Storage::kNVFP4 || m.storage == Storage::kMXFP4) {
    // A billion of them in a big model: look at the bytes first. Valid nvfp4 scales are 0x00 ...
    // 0x7E.
    const uint8_t limit = m.storage == Storage::kNVFP4 ? 0x7E : 0xFE;
    uint8_t largest = 0;
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<uint8_t>(m.scales[i]));
    if (largest <= limit) return {};
  }
  for (size_t i = 0; i < n; ++i) {
    float scale = 0.0f;
    if (m.storage == Storage::kF8E4M3 || m.storage == Storage::kInt8 ||
        m.storage == Storage::kInt4) {
      scale = BlockScaleAt(m, i);
    } else {
      const auto bits = LoadAt<uint8_t>(m.scales, i);
      scale = m.storage == Storage::kNVFP4 ? F8E4M3ToFloat(bits) : E8M0ToFloat(bits);
    }
    if (!std::isfinite(scale) || (m.storage == Storage::kNVFP4 && std::signbit(scale))) {
      return MakeError(ErrorCode::kCorrupt, "{}: block scale {} is {}; wanted a finite number{}",
                       m.name, i, scale,
                       m.storage == Storage::kNVFP4 ? " that is not negative" : "");
    }
  }
  return {};
}

}  // namespace carpool
