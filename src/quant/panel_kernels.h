// Panel kernels: y = x W^T on packed weights, one implementation per CPU variant, all with the same
// bits.
//
// Panel layout. Output rows are cut into panels of 16; inputs are padded with zeros to a multiple
// of 32. Inside a panel everything is stored 16 rows side by side, so that one vector lane is one
// output row and no horizontal sum is needed:
//   superblock = [64-byte header: the scales of 16 rows][codes], `super_blocks` blocks of 32 inputs
//   (the last may hold fewer).
//   format  header                        codes of one 32-block
//   f32     none                          32 x 64 B: 16 rows of one input
//   bf16    none                          16 x 64 B: 16 rows x 2 inputs
//   fp8     f32 scale x 16 rows           16 x 32 B: 16 rows x 2 inputs
//   q8      bf16 scale x 16 rows x 2      8 x 64 B: 16 rows x 4 inputs, value + 128
//   nvfp4   e4m3 scale x 16 rows x 4      4 x 64 B: 16 rows x 8 inputs; byte b = input b (low
//                                         nibble), input 4 + b (high)
//   mxfp4   e8m0 scale x 16 rows x 4      the same
//   q4      f16 scale x 16 rows, then     the same; value = code * scale + minimum
//           f16 minimum x 16 rows
//   q6      f16 scale x 16 rows x 2       the same for the low four bits (value + 32), then 2 x 64
//   B:
//           (of 16 inputs each)           of 16 rows x 16 inputs the high two; bits 2j, 2j + 1 of
//                                         byte b = input 4j + b
//
// Summation order, the same for every variant, row count and thread count (this is what makes exact
// mode exact):
//   fp32 activations: in each scale block (32 inputs, nvfp4 and q6: 16) one FMA chain over the even
//   and one over the odd inputs,
//     ascending; their sum times the block scale is added to the output by one FMA (formats without
//     block scales: an add).
//   int8 activations (blocks of 32 inputs): exact integer dot product of a scale block, converted,
//   times the weight scale
//     (nvfp4 and q6: two such terms by FMA; q4: the minimum times the sum of the inputs by FMA),
//     then one FMA with the activation scale.
//   The output is multiplied by `out_scale` last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_info.h"

namespace carpool {

inline constexpr size_t kPanelRows = 16;
inline constexpr size_t kBlockInputs = 32;
inline constexpr size_t kNumWeightFormats = 8;
/// Table entries of the int8 path are 2 * e2m1 + 12, so that they are unsigned.
inline constexpr int32_t kFp4Offset = 12;
inline constexpr int32_t kQ8Offset = 128;
inline constexpr int32_t kQ6Offset = 32;
/// What the int8 kernels add to a 6-bit code instead, so that its correction is a multiple of the
/// 4-bit one: 3 * neg_fp4.
inline constexpr int32_t kQ6Int8Offset = 3 * kFp4Offset;

/// 32 inputs of an activation row as int8: x[i] = q[i] * scale. A row is blocks() of them, so that
/// a kernel needs one pointer per row; inputs beyond the row's end are zero.
struct Q8Block {
  int8_t q[kBlockInputs];
  int32_t neg_fp4[2];  // -12 * sum of q over each half
  int32_t neg_q8;      // -128 * sum of q
  float scale;         // NaN where the block holds a NaN or an infinity
};

/// y[r * y_stride + 16 * p + lane] for panels p in [0, num_panels) and rows r in [0, rows). All 16
/// lanes are written.
struct PanelCall {
  const std::byte* panels;
  size_t num_panels;
  size_t panel_bytes;
  size_t blocks;        // padded inputs / 32
  size_t super_blocks;  // 32-blocks per header
  float out_scale;
  /// f32 kernels: const float* const*, each row padded to blocks * 32; int8 kernels: const Q8Block*
  /// const*.
  const void* x;
  size_t rows;
  float* y;
  size_t y_stride;
  /// What will be read after these panels, for the prefetch; null: whatever follows them in memory.
  const std::byte* next;
};
using PanelFn = void (*)(const PanelCall&);

/// One variant. Indexed by WeightFormat.
struct KernelSet {
  Isa isa;
  PanelFn f32[kNumWeightFormats];
  PanelFn q8[kNumWeightFormats];  // null where a format has no int8 form; it then takes fp32
                                  // activations
  /// x[n] to int8; n need not be a multiple of 32.
  void (*quantize)(const float* x, size_t n, Q8Block* out);
  /// out[i] = silu(gate[i]) * up[i]; n a multiple of 16.
  void (*swiglu)(const float* gate, const float* up, size_t n, float* out);
  /// y[i] = sum_j weights[j] * terms[j][i] in order of j by FMA from zero, then + last[i] unless
  /// null; n a multiple of 16.
  void (*combine)(const float* const* terms, const float* weights, size_t num_terms,
                  const float* last, size_t n, float* y);
};

/// The variant in use: chosen once (base/cpu_info.h), each kernel checked against the scalar twin
/// on a few blocks and replaced by it, with one warning, when a bit differs.
const KernelSet& Kernels();

/// A given variant, unchecked; null when this build or CPU has none. For tests.
const KernelSet* KernelsFor(Isa isa);

/// One per file kernels_*.cc; null in a build for another architecture.
const KernelSet* ScalarKernels();
const KernelSet* Avx2Kernels();
const KernelSet* Avx512Kernels();
const KernelSet* NeonKernels();

}  // namespace carpool
