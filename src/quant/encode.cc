#include "quant/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/aligned.h"

namespace carpool {
namespace {

constexpr size_t kF8Block = 128;

void StoreCode(std::byte* row, size_t i, uint8_t code) {
  const auto shifted = static_cast<std::byte>(i % 2 == 0 ? code : code << 4);
  row[i / 2] = i % 2 == 0 ? shifted : row[i / 2] | shifted;
}

float MaxAbs(const float* values, size_t n) {
  float max = 0.0f;
  for (size_t i = 0; i < n; ++i) max = std::max(max, std::fabs(values[i]));
  return max;
}

void EncodeNVFP4(const float* values, size_t cols, float global_scale, std::byte* codes,
                 std::byte* scales) {
  for (size_t b = 0; b < cols / 16; ++b) {
    const float* block = values + b * 16;
    const float max = MaxAbs(block, 16);
    const float wanted =
        max == 0.0f ? 1.0f : std::clamp(max / 6.0f / global_scale, 0.001953125f, 448.0f);
    const uint8_t bits = FloatToE4M3(wanted);
    scales[b] = static_cast<std::byte>(bits);
    // In double: a ratio that fp32 rounds onto a tie would take the wrong side.
    const double scale =
        static_cast<double>(F8E4M3ToFloat(bits)) * static_cast<double>(global_scale);
    for (size_t i = 0; i < 16; ++i)
      StoreCode(codes, b * 16 + i, FloatToE2M1(static_cast<double>(block[i]) / scale));
  }
}

/// The power of two that leaves the smaller squared error: amax just below 8 clips, just above 6
/// wastes half the range.
void EncodeMXFP4(const float* values, size_t cols, std::byte* codes, std::byte* scales) {
  for (size_t b = 0; b < cols / 32; ++b) {
    const float* block = values + b * 32;
    const float max = MaxAbs(block, 32);
    const int low = max > 0.0f ? std::clamp(std::ilogb(max) - 2, -126, 126) : 0;
    int best = low;
    double best_error = 0.0;
    for (int exponent = low; exponent <= low + 1; ++exponent) {
      const float scale = std::ldexp(1.0f, exponent);
      double error = 0.0;
      for (size_t i = 0; i < 32; ++i) {
        const auto d = static_cast<double>(
            E2M1ToFloat(FloatToE2M1(static_cast<double>(block[i] / scale))) * scale - block[i]);
        error += d * d;
      }
      if (exponent == low || error < best_error) {
        best = exponent;
        best_error = error;
      }
    }
    scales[b] = static_cast<std::byte>(best + 127);
    const float scale = std::ldexp(1.0f, best);
    for (size_t i = 0; i < 32; ++i)
      StoreCode(codes, b * 32 + i, FloatToE2M1(static_cast<double>(block[i] / scale)));
  }
}

/// Scales as bf16, so that the panels of the kernels hold the very same numbers.
void EncodeInt8(const float* values, size_t cols, std::byte* codes, std::byte* scales) {
  for (size_t b = 0; b * kBlockInputs < cols; ++b) {
    const float* block = values + b * kBlockInputs;
    const size_t n = std::min(kBlockInputs, cols - b * kBlockInputs);
    const uint16_t bits = FloatToBF16(MaxAbs(block, n) / 127.0f);
    const float scale = BF16ToFloat(bits);
    std::memcpy(scales + b * 2, &bits, 2);
    for (size_t i = 0; i < n; ++i) {
      const float q = scale > 0.0f ? std::nearbyint(block[i] / scale) : 0.0f;
      codes[b * kBlockInputs + i] =
          static_cast<std::byte>(static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
    }
  }
}

/// Largest |value| per row; NaN or infinite values make it so.
std::vector<float> RowMaxima(const StoredMatrix& source, ThreadPool& pool) {
  std::vector<float> maxima(source.rows);
  pool.ParallelFor(source.rows, [&](size_t r, size_t) {
    std::vector<float> row(source.cols);
    DequantizeRow(source, r, row.data());
    float max = 0.0f;
    for (const float v : row) max = std::isfinite(v) ? std::max(max, std::fabs(v)) : v;
    maxima[r] = std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })
                    ? max
                    : std::nanf("");
  });
  return maxima;
}

/// amax / 448 of every 128 x 128 block; 1 for a block of zeros.
void FillF8Scales(const StoredMatrix& source, std::vector<std::byte>& scales, ThreadPool& pool) {
  const size_t per_row = DivCeil(source.cols, kF8Block);
  pool.ParallelFor(DivCeil(source.rows, kF8Block), [&](size_t block_row, size_t) {
    std::vector<float> row(source.cols), max(per_row, 0.0f);
    for (size_t r = block_row * kF8Block; r < std::min(source.rows, (block_row + 1) * kF8Block);
         ++r) {
      DequantizeRow(source, r, row.data());
      for (size_t i = 0; i < source.cols; ++i)
        max[i / kF8Block] = std::max(max[i / kF8Block], std::fabs(row[i]));
    }
    for (size_t b = 0; b < per_row; ++b) {
      const float scale = max[b] > 0.0f ? max[b] / 448.0f : 1.0f;
      std::memcpy(scales.data() + (block_row * per_row + b) * 4, &scale, 4);
    }
  });
}

}  // namespace

uint8_t FloatToE4M3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7F;
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return sign | 0x7E;
  const int exponent = magnitude < 0.015625f ? -6 : std::ilogb(magnitude);
  // In units of the last place: 0 ... 16; 16 carries into the next exponent by itself.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return static_cast<uint8_t>(sign | (((exponent + 6) << 3) + units));
}

uint8_t FloatToE2M1(double value) {
  constexpr double kUpTo[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};  // between codes k and k + 1
  const double a = std::fabs(value);
  int code = 0;
  while (code < 7 && (code % 2 == 0 ? a > kUpTo[code] : a >= kUpTo[code])) ++code;
  return static_cast<uint8_t>(value < 0.0 ? code | 8 : code);
}

Result<EncodedMatrix> EncodeMatrix(const StoredMatrix& source, Storage target, ThreadPool& pool) {
  const size_t block = target == Storage::kNVFP4 ? 16 : target == Storage::kMXFP4 ? 32 : 1;
  const bool known = block > 1 || target == Storage::kF8E4M3 || target == Storage::kInt8 ||
                     target == Storage::kBF16;
  if (!known || source.cols % block != 0) {
    return MakeError(ErrorCode::kUnsupported, "{}: [{}, {}] cannot be encoded as {}{}", source.name,
                     source.rows, source.cols, StorageName(target),
                     known ? fmt::format(": it needs a multiple of {} inputs", block) : "");
  }
  RETURN_IF_ERROR(ValidateScales(source));
  EncodedMatrix out;
  StoredMatrix& view = out.matrix.view;
  view.name = source.name;
  view.storage = target;
  view.rows = source.rows;
  view.cols = source.cols;
  const auto maxima = RowMaxima(source, pool);
  float max = 0.0f;
  for (size_t r = 0; r < maxima.size(); ++r) {
    if (!std::isfinite(maxima[r])) {
      return MakeError(ErrorCode::kCorrupt, "{}: row {} holds a value that is not finite",
                       source.name, r);
    }
    max = std::max(max, maxima[r]);
  }
  const size_t row_bytes = block > 1                  ? source.cols / 2
                           : target == Storage::kBF16 ? source.cols * 2
                                                      : source.cols;
  out.matrix.data.resize(source.rows * row_bytes);
  if (block > 1) out.matrix.scales.resize(source.rows * (source.cols / block));
  if (target == Storage::kNVFP4) view.global_scale = max > 0.0f ? max / (6.0f * 448.0f) : 1.0f;
  if (target == Storage::kF8E4M3) {
    view.scale_block_rows = view.scale_block_cols = kF8Block;
    out.matrix.scales.resize(DivCeil(source.rows, kF8Block) * DivCeil(source.cols, kF8Block) * 4);
    FillF8Scales(source, out.matrix.scales, pool);
  }
  const size_t int8_groups = DivCeil(source.cols, kBlockInputs);
  if (target == Storage::kInt8) {
    view.scale_block_rows = 1;
    view.scale_block_cols = kBlockInputs;
    view.scale_storage = Storage::kBF16;
    out.matrix.scales.resize(source.rows * int8_groups * 2);
  }
  view.data = out.matrix.data.data();
  view.data_bytes = out.matrix.data.size();
  view.scales = out.matrix.scales.empty() ? nullptr : out.matrix.scales.data();
  std::vector<double> errors(source.rows), squares(source.rows);
  pool.ParallelFor(source.rows, [&](size_t r, size_t) {
    std::vector<float> values(source.cols), decoded(source.cols);
    DequantizeRow(source, r, values.data());
    std::byte* codes = out.matrix.data.data() + r * row_bytes;
    switch (target) {
      case Storage::kNVFP4:
        EncodeNVFP4(values.data(), source.cols, view.global_scale, codes,
                    out.matrix.scales.data() + r * (source.cols / 16));
        break;
      case Storage::kMXFP4:
        EncodeMXFP4(values.data(), source.cols, codes,
                    out.matrix.scales.data() + r * (source.cols / 32));
        break;
      case Storage::kInt8:
        EncodeInt8(values.data(), source.cols, codes,
                   out.matrix.scales.data() + r * int8_groups * 2);
        break;
      case Storage::kF8E4M3:
        for (size_t i = 0; i < source.cols; ++i) {
          float scale;
          const size_t at = r / kF8Block * DivCeil(source.cols, kF8Block) + i / kF8Block;
          std::memcpy(&scale, out.matrix.scales.data() + at * 4, 4);
          codes[i] = static_cast<std::byte>(FloatToE4M3(values[i] / scale));
        }
        break;
      default:
        for (size_t i = 0; i < source.cols; ++i) {
          const uint16_t bits = FloatToBF16(values[i]);
          std::memcpy(codes + 2 * i, &bits, 2);
        }
    }
    DequantizeRow(view, r, decoded.data());
    for (size_t i = 0; i < source.cols; ++i) {
      const double d = static_cast<double>(decoded[i]) - static_cast<double>(values[i]);
      errors[r] += d * d;
      squares[r] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  });
  for (size_t r = 0; r < source.rows; ++r)
    out.squared_error += errors[r], out.squared_source += squares[r];
  return out;
}

}  // namespace carpool
