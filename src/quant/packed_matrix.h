// PackedMatrix: a linear layer's weight in the layout its kernel reads, made once at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/aligned.h"
#include "base/result.h"
#include "quant/stored_matrix.h"

namespace carpool {

/// How activations meet the weights: fp32, or int8 with one scale per block (faster, see docs/PERFORMANCE.md).
enum class Activations : uint8_t { kF32, kQ8 };

/// Run-time weight formats; each has its own kernel file.
enum class WeightFormat : uint8_t { kF32, kBF16, kFP8, kQ8, kNVFP4, kMXFP4 };
std::string_view WeightFormatName(WeightFormat format);

/// [rows, cols] = [out, in]. Owns its memory; immutable after Pack, so any thread may read it.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Packs in the storage's own format (F16 becomes F32), or in `format` when one is given (`--dense-format q8`).
  /// Errors: Unsupported (a size the format cannot have, with the tensor's name), Corrupt (NaN scales).
  static Result<PackedMatrix> Pack(const StoredMatrix& source);
  static Result<PackedMatrix> Pack(const StoredMatrix& source, WeightFormat format);
  /// From fp32 values [rows, cols]; for tests and for weights derived at load (absorbed MLA).
  static PackedMatrix FromFloats(const float* values, size_t rows, size_t cols, WeightFormat format = WeightFormat::kF32);

  WeightFormat format() const { return format_; }
  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  bool empty() const { return rows_ == 0; }
  /// Bytes one full read of the weight moves.
  size_t bytes() const { return panels_.size(); }
  const std::byte* panels() const { return panels_.data(); }
  float global_scale() const { return global_scale_; }

 private:
  WeightFormat format_ = WeightFormat::kF32;
  size_t rows_ = 0;
  size_t cols_ = 0;
  float global_scale_ = 1.0f;
  AlignedBuffer<std::byte> panels_;
};

}  // namespace carpool
