// PackedMatrix: a linear layer's weight in the layout its kernel reads (quant/panel_kernels.h),
// made once at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/page_buffer.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/panel_kernels.h"
#include "quant/stored_matrix.h"

namespace carpool {

/// How activations meet the weights: fp32, or int8 with one scale per block (faster, see
/// docs/PERFORMANCE.md). Formats without an int8 kernel (f32, bf16, fp8) take fp32 activations in
/// both modes.
enum class Activations : uint8_t { kF32, kQ8 };

/// Run-time weight formats; the order is that of the kernel tables.
enum class WeightFormat : uint8_t { kF32, kBF16, kFP8, kQ8, kNVFP4, kMXFP4, kQ4, kQ6 };
std::string_view WeightFormatName(WeightFormat format);
/// "nvfp4" and so on. Errors list the known names.
Result<WeightFormat> ParseWeightFormat(std::string_view name);

/// [rows, cols] = [out, in]. Immutable after Pack, so any thread may read it. Owns its memory,
/// unless packed with PackInto.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Packs in the storage's own format, or in `format` when one is given (`--dense-format q8`):
  /// f32, bf16 and q8 can be made from any storage. F16, and FP8 whose scale blocks are not a
  /// multiple of 32 columns, become F32. `pool` may be null; packing runs in parallel with it, and
  /// needs no memory beyond the result. Errors: Unsupported (a size or format that cannot be had,
  /// with the tensor's name), Corrupt (NaN scales or weights).
  static Result<PackedMatrix> Pack(const StoredMatrix& source, ThreadPool* pool = nullptr);
  static Result<PackedMatrix> Pack(const StoredMatrix& source, WeightFormat format,
                                   ThreadPool* pool = nullptr);
  /// As Pack, into `memory` (zeroed, 64-byte aligned, PackedBytes(source) long, plus 64 readable
  /// bytes), which must outlive the matrix.
  static Result<PackedMatrix> PackInto(const StoredMatrix& source, std::byte* memory,
                                       std::optional<WeightFormat> format = {},
                                       ThreadPool* pool = nullptr);
  /// As PackInto, of `memory` that already holds what PackInto would write. Nothing is read.
  static Result<PackedMatrix> FromPacked(const StoredMatrix& source, const std::byte* memory,
                                         std::optional<WeightFormat> format = {});
  static size_t PackedBytes(const StoredMatrix& source, std::optional<WeightFormat> format = {});
  static WeightFormat NaturalFormat(const StoredMatrix& source);
  /// From finite fp32 values [rows, cols]; for tests and for weights derived at load (absorbed
  /// MLA). kF32, kBF16 or kQ8 (rounded).
  static PackedMatrix FromFloats(const float* values, size_t rows, size_t cols,
                                 WeightFormat format = WeightFormat::kF32);

  WeightFormat format() const { return format_; }
  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  bool empty() const { return rows_ == 0; }
  /// Bytes one full read of the weight moves (padding included).
  size_t bytes() const { return num_panels() * panel_bytes_; }
  size_t num_panels() const { return (rows_ + kPanelRows - 1) / kPanelRows; }
  size_t panel_bytes() const { return panel_bytes_; }
  /// 32-blocks of a row: activations must be padded with zeros to blocks() * 32.
  size_t blocks() const { return (cols_ + kBlockInputs - 1) / kBlockInputs; }
  const std::byte* panels() const { return panels_; }
  float global_scale() const { return global_scale_; }

  /// Whether an OpContext with these activations meets this weight with int8 rows.
  bool UsesQ8(Activations activations) const;
  /// A call for panels [first, first + count) with everything but x, rows and y filled in.
  PanelCall Call(size_t first, size_t count, bool q8) const;

 private:
  /// Empty, with the layout `source` gets in `format` (null: its own).
  static Result<PackedMatrix> Plan(const StoredMatrix& source, std::optional<WeightFormat> format);
  PackedMatrix(WeightFormat format, const StoredMatrix& source);
  Status Fill(const StoredMatrix& source, std::byte* memory, ThreadPool* pool);

  WeightFormat format_ = WeightFormat::kF32;
  size_t rows_ = 0;
  size_t cols_ = 0;
  float global_scale_ = 1.0f;
  size_t super_blocks_ = 1;
  size_t panel_bytes_ = 0;
  const std::byte* panels_ = nullptr;
  PageBuffer storage_;
};

}  // namespace carpool
