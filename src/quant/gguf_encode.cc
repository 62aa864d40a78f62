#include "quant/gguf_encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/encode.h"
#include "quant/gguf_blocks.h"

namespace carpool {
namespace {

void EncodeQ8_0(const float* values, size_t n, std::byte* out) {
  for (size_t b = 0; b < n; b += 32, out += 34) {
    float max = 0.0f;
    for (size_t i = 0; i < 32; ++i) max = std::max(max, std::fabs(values[b + i]));
    const uint16_t bits = FloatToF16(max / 127.0f);
    const float scale = F16ToFloat(bits);
    std::memcpy(out, &bits, sizeof(bits));
    for (size_t i = 0; i < 32; ++i) {
      const float q = scale > 0.0f ? std::nearbyint(values[b + i] / scale) : 0.0f;
      out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
    }
  }
}

void EncodeFloats(Storage target, const float* values, size_t n, std::byte* out) {
  for (size_t i = 0; i < n; ++i) {
    if (target == Storage::kF32) {
      std::memcpy(out + i * 4, &values[i], 4);
    } else {
      const uint16_t bits =
          target == Storage::kF16 ? FloatToF16(values[i]) : FloatToBF16(values[i]);
      std::memcpy(out + i * 2, &bits, 2);
    }
  }
}

/// One row of kNVFP4 or kMXFP4 as GGUF blocks.
void JoinFp4(const StoredMatrix& m, size_t row, std::byte* out) {
  const bool nv = m.storage == Storage::kNVFP4;
  const size_t run = nv ? 16 : 32, runs = nv ? 4 : 1, block_bytes = nv ? 36 : 17;
  const size_t stride = m.RowStride();
  const std::byte* codes = m.data + row * (stride / 2);
  const std::byte* scales = m.scales + row * (stride / run);
  const auto code = [&](size_t i) {
    const auto byte = static_cast<unsigned>(codes[i / 2]);
    return i % 2 == 0 ? byte & 15u : byte >> 4;
  };
  for (size_t r = 0; r * run < m.cols; ++r) {
    std::byte* block = out + r / runs * block_bytes;
    block[r % runs] = scales[r];
    for (size_t i = 0; i < run / 2; ++i) {
      block[runs + r % runs * (run / 2) + i] =
          static_cast<std::byte>(code(r * run + i) | code(r * run + run / 2 + i) << 4);
    }
  }
}

}  // namespace

uint16_t FloatToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float a = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7E00);
  if (a >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);  // rounds past the largest
  if (a < 0x1p-14f) {  // subnormal: a whole number of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(a * 0x1p24f)));
  }
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

Result<GgufMatrix> EncodeGguf(const StoredMatrix& source, Storage target, ThreadPool& pool,
                              const std::vector<size_t>& row_of) {
  const GgmlType* type = GgmlTypeOf(target);
  const bool nv = target == Storage::kGgufNVFP4, mx = target == Storage::kGgufMXFP4;
  const bool known = nv || mx || target == Storage::kF32 || target == Storage::kF16 ||
                     target == Storage::kBF16 || target == Storage::kQ8_0;
  if (!known || source.cols % type->block_inputs != 0) {
    return MakeError(
        ErrorCode::kUnsupported, "{}: [{}, {}] cannot be written as {}{}", source.name, source.rows,
        source.cols, StorageName(target),
        known ? fmt::format(": it needs a multiple of {} inputs", type->block_inputs) : "");
  }
  RETURN_IF_ERROR(ValidateScales(source));
  const size_t row_bytes = source.cols / type->block_inputs * type->block_bytes;
  GgufMatrix out;
  out.bytes.resize(source.rows * row_bytes);
  const auto from = [&](size_t r) { return row_of.empty() ? r : row_of[r]; };
  if (source.storage == target) {  // blocks and floats as they lie
    if (source.RowStride() == source.cols && source.col_stride == 1) {
      out.scale = source.global_scale;
      for (size_t r = 0; r < source.rows; ++r)
        std::memcpy(out.bytes.data() + r * row_bytes, source.data + from(r) * row_bytes, row_bytes);
      return out;
    }
  }
  if (nv || mx) {
    EncodedMatrix encoded;
    const StoredMatrix* fp4 = &source;
    if (source.storage != (nv ? Storage::kNVFP4 : Storage::kMXFP4)) {
      ASSIGN_OR_RETURN(encoded, EncodeMatrix(source, nv ? Storage::kNVFP4 : Storage::kMXFP4, pool));
      fp4 = &encoded.matrix.view;
    }
    out.scale = fp4->global_scale;
    pool.ParallelFor(source.rows, [&](size_t r, size_t) {
      JoinFp4(*fp4, from(r), out.bytes.data() + r * row_bytes);
    });
    return out;
  }
  pool.ParallelFor(source.rows, [&](size_t r, size_t) {
    std::vector<float> values(source.cols);
    DequantizeRow(source, from(r), values.data());
    std::byte* to = out.bytes.data() + r * row_bytes;
    if (target == Storage::kQ8_0) {
      EncodeQ8_0(values.data(), source.cols, to);
    } else {
      EncodeFloats(target, values.data(), source.cols, to);
    }
  });
  return out;
}

}  // namespace carpool
