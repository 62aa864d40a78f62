// Activations in the two forms the panel kernels read: padded fp32 rows, or int8 rows.
#pragma once

#include <span>

#include "base/views.h"
#include "ops/op_context.h"

namespace carpool {

/// One pointer per row of x. Rows whose width is not a multiple of 32 are copied to the arena with
/// zeros behind them.
std::span<const float*> F32Rows(MatView<const float> x, Arena& arena);

/// x as int8 (quantised on the calling thread: a few microseconds where the product takes
/// hundreds).
std::span<const Q8Block*> Q8Rows(MatView<const float> x, OpContext& context);

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
