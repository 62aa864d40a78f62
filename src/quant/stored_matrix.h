// StoredMatrix: one linear layer's weight as it lies in a checkpoint, before it is packed for the
// kernels.
//
// It is a view: codes and scales stay in the mapped file. Which storage a weight uses is decided
// per tensor from what is present (weights/tensor_binder.h), never from the config alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace carpool {

/// How weights are stored in checkpoints. The order is not part of any format.
enum class Storage : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,  // with scales: one per block of rows x columns, or one per row, or one for all
  kNVFP4,  // e2m1 codes, even input in the low nibble; one e4m3 scale per 16 inputs; one factor for
           // the tensor
  kMXFP4,  // e2m1 codes, even input in the low nibble; one e8m0 scale per 32 inputs
  kInt8,   // signed codes; one scale per row and group of inputs, as compressed-tensors has it
  kInt4,   // code - 8, even input in the low nibble; one float scale per scale_block_cols inputs
  // Blocks of GGUF files, scales inside (quant/gguf_blocks.h); `data` only, no `scales`.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kGgufMXFP4,
  kGgufNVFP4,
};

/// "bf16", "nvfp4", …: the name used in reports and JSON.
std::string_view StorageName(Storage storage);

/// [rows, cols] = [out, in], row-major. Owns nothing; pointers may be unaligned for their type.
struct StoredMatrix {
  std::string name;  // for messages
  Storage storage = Storage::kF32;
  size_t rows = 0;
  size_t cols = 0;
  const std::byte* data = nullptr;
  size_t data_bytes = 0;
  /// Weights from one row to the next (float storages and kMXFP4) and from one column to the next
  /// (float storages): slices of fused tensors may lie interleaved or transposed. 0: cols.
  size_t row_stride = 0;
  size_t col_stride = 1;
  /// kF8E4M3, kInt8: scales [ceil(rows/scale_block_rows), ceil(cols/scale_block_cols)]; kNVFP4:
  /// e4m3 [rows, cols/16]; kMXFP4: e8m0 [rows, cols/32]; kInt4: floats [rows,
  /// cols/scale_block_cols]. Null for the float storages and for an unscaled F8.
  const std::byte* scales = nullptr;
  Storage scale_storage = Storage::kF32;  // kF8E4M3, kInt8, kInt4: kF32, kBF16 or kF16
  size_t scale_block_rows = 0;  // kF8E4M3, kInt8 (there 1, or `rows` for one scale in all)
  size_t scale_block_cols = 0;
  /// Multiplies every weight. NVFP4: weight_scale_2 (ModelOpt), 1/weight_global_scale
  /// (compressed-tensors), the ".scale" tensor (GGUF).
  float global_scale = 1.0f;

  /// Bytes this matrix takes in the file, scales included.
  size_t TotalBytes() const;
  size_t RowStride() const { return row_stride == 0 ? cols : row_stride; }
};

/// Writes row `row` as fp32 to out[cols]. The exact meaning of every storage, and the oracle of the
/// kernels' tests. NVFP4: e2m1 * (f32(block scale) * global_scale), the product of the two scales
/// rounded to fp32 first.
void DequantizeRow(const StoredMatrix& matrix, size_t row, float* out);

/// Refuses NaN or negative block scales (NVFP4), NaN scales (others), sizes the storage cannot
/// have.
Status ValidateScales(const StoredMatrix& matrix);

/// Scale `index` of a storage whose scales are floats (kF8E4M3, kInt8, kInt4).
float BlockScaleAt(const StoredMatrix& matrix, size_t index);

/// Scalar conversions, exact.
float F8E4M3ToFloat(uint8_t bits);
float BF16ToFloat(uint16_t bits);
float F16ToFloat(uint16_t bits);
float E8M0ToFloat(uint8_t bits);    // 255 is NaN
float E2M1ToFloat(uint8_t code);    // low four bits
uint16_t FloatToBF16(float value);  // round to nearest even, NaN stays quiet
uint16_t FloatToF16(float value);   // the same; infinity from 65520 on

}  // namespace carpool
