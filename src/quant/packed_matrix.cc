#include "quant/packed_matrix.h"

#include <cstring>

namespace carpool {

std::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kFP8:
      return "fp8";
    case WeightFormat::kQ8:
      return "q8";
    case WeightFormat::kNVFP4:
      return "nvfp4";
    case WeightFormat::kMXFP4:
      return "mxfp4";
  }
  return "?";
}

Result<PackedMatrix> PackedMatrix::Pack(const StoredMatrix& source) {
  RETURN_IF_ERROR(ValidateScales(source));
  PackedMatrix packed;
  packed.rows_ = source.rows;
  packed.cols_ = source.cols;
  packed.panels_ = AlignedBuffer<std::byte>(source.rows * source.cols * sizeof(float));
  auto* out = reinterpret_cast<float*>(packed.panels_.data());
  for (size_t r = 0; r < source.rows; ++r) DequantizeRow(source, r, out + r * source.cols);
  return packed;
}

PackedMatrix PackedMatrix::FromFloats(const float* values, size_t rows, size_t cols, WeightFormat) {
  PackedMatrix packed;
  packed.rows_ = rows;
  packed.cols_ = cols;
  packed.panels_ = AlignedBuffer<std::byte>(rows * cols * sizeof(float));
  std::memcpy(packed.panels_.data(), values, rows * cols * sizeof(float));
  return packed;
}

}  // namespace carpool
