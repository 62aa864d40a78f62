// Encoding weights the way checkpoints store them: the inverse of DequantizeRow, as NVIDIA
// ModelOpt, the OCP microscaling spec and DeepSeek's block fp8 define it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "quant/random_matrix.h"
#include "quant/stored_matrix.h"

namespace carpool {

/// To the nearest e4m3, ties to even, clamped to +-448. NaN becomes NaN.
uint8_t FloatToE4M3(float value);
/// To the nearest e2m1, ties to the even code, clamped to +-6; everything below zero gets the sign
/// bit, as ModelOpt does.
uint8_t FloatToE2M1(double value);

struct EncodedMatrix {
  OwnedMatrix matrix;
  double squared_error = 0.0;  // sum over (decoded - source)^2
  double squared_source = 0.0;
};

/// `source` as kNVFP4 (scales by 16, one factor), kMXFP4 (scales by 32), kF8E4M3 (fp32 scales by
/// 128 x 128), kInt8 (bf16 scales by 32) or kBF16. Rows in parallel. Errors: Unsupported (target,
/// cols not a multiple of the block), Corrupt (not finite), naming the tensor.
Result<EncodedMatrix> EncodeMatrix(const StoredMatrix& source, Storage target, ThreadPool& pool);

}  // namespace carpool
