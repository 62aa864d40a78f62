// One panel of a PackedMatrix from its stored form.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "quant/packed_matrix.h"

namespace carpool {

/// Everything that would make PackPanel write a NaN the checkpoint's author did not mean. Names the
/// tensor.
Status ValidateForPacking(const StoredMatrix& source, WeightFormat format);

/// Writes panel `panel` (16 output rows) in `format` to `out`, which is zeroed and panel_bytes()
/// long.
void PackPanel(const StoredMatrix& source, WeightFormat format, size_t panel, size_t super_blocks,
               std::byte* out);

}  // namespace carpool
