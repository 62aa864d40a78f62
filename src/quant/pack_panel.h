// One panel of a PackedMatrix from its stored form.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "quant/packed_matrix.h"

namespace carpool {

/// Everything that would make PackPanel write a NaN the checkpoint's author did not mean, as far as
/// it can be seen without decoding. Names the tensor.
Status ValidateForPacking(const StoredMatrix& source);

/// Writes panel `panel` (16 output rows) in `format` to `out`, which is zeroed and panel_bytes()
/// long. Error: Corrupt (a weight that is not finite, where `format` cannot hold one).
Status PackPanel(const StoredMatrix& source, WeightFormat format, size_t panel, size_t super_blocks,
                 std::byte* out);

}  // namespace carpool
