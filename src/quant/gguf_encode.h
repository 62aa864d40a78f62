// Writing the GGUF types that conversions make; the inverse of quant/gguf_blocks.h.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/stored_matrix.h"

namespace carpool {

/// To the nearest fp16, ties to even; too large becomes infinity.
uint16_t FloatToF16(float value);

struct GgufMatrix {
  std::vector<std::byte> bytes;  // row by row
  float scale = 1.0f;            // multiplies all of it; not 1 for NVFP4 only
};

/// `source` as kF32, kF16, kBF16, kQ8_0, kGgufMXFP4 or kGgufNVFP4, rows in parallel. What is stored
/// as 4-bit floats already keeps its codes. Row r is the source's `row_of[r]` when given. Errors:
/// Unsupported (target, or columns that do not fit its blocks), Corrupt (not finite).
Result<GgufMatrix> EncodeGguf(const StoredMatrix& source, Storage target, ThreadPool& pool,
                              const std::vector<size_t>& row_of = {});

}  // namespace carpool
