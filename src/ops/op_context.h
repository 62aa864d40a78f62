// What every op needs besides its operands. Passed by reference; owned by the engine.
#pragma once

#include "base/arena.h"
#include "base/thread_pool.h"
#include "quant/packed_matrix.h"
#include "quant/panel_kernels.h"

namespace carpool {

struct OpContext {
  ThreadPool& pool;
  Arena& arena;  // scratch of the running step
  Activations activations = Activations::kF32;
  const KernelSet& kernels = Kernels();  // tests name a variant
};

}  // namespace carpool
