// Activations in the two forms the panel kernels read: padded fp32 rows, or int8 rows.
#pragma once

#include <span>

#include "base/views.h"
#include "ops/op_context.h"

namespace carpool {

/// One pointer per row of x. Rows whose width is not a multiple of 32 are copied to the arena with
/// zeros behind them.
std::span<const float*> F32Rows(MatView<const float> x, Arena& arena);

/// `rows` int8 rows of `cols` inputs in the arena, not yet written.
std::span<Q8Row> NewQ8Rows(size_t rows, size_t cols, Arena& arena);

/// x as int8 (quantised on the calling thread: a few microseconds where the product takes
/// hundreds).
std::span<Q8Row> Q8Rows(MatView<const float> x, OpContext& context);

/// The part of an int8 row that starts at 32-block `block`.
Q8Row BlocksFrom(const Q8Row& row, size_t block);

/// Regions that read less than this from cache are run by the caller: waking the others would take
/// as long.
bool WorthForking(size_t weight_bytes, size_t rows);

/// pool.ParallelFor, or a plain loop when `fork` is false. Same tasks either way, so the same
/// results.
template <typename Fn>
void RunTasks(ThreadPool& pool, size_t tasks, bool fork, const Fn& fn) {
  if (fork) return pool.ParallelFor(tasks, fn);
  for (size_t task = 0; task < tasks; ++task) fn(task, size_t{0});
}

}  // namespace carpool
