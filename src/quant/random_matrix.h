// Random weights in every storage: for tests, benchmarks and synthetic models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "quant/packed_matrix.h"
#include "quant/stored_matrix.h"

namespace carpool {

/// Owns the bytes a StoredMatrix views.
struct OwnedMatrix {
  StoredMatrix view;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
};

/// [rows, cols] of roughly normal weights with standard deviation 1/sqrt(cols), as `format` is
/// stored in checkpoints (q8 as bf16, q4 as Q4_K or Q4_1, q6 as Q6_K). 4-bit and fp8 codes are
/// uniform over the finite ones, scales vary by a factor of two. The same seed gives the same bytes
/// everywhere. cols must suit the format.
OwnedMatrix RandomMatrix(WeightFormat format, size_t rows, size_t cols, uint64_t seed);

}  // namespace carpool
