// What this machine's memory gives the engine's threads: the yardstick of
// carpool:bandwidth_utilisation.
#pragma once

#include "base/thread_pool.h"

namespace carpool {

/// Bytes per second that the pool's threads read from memory, best of a few passes over 128 MB.
/// Takes about a tenth of a second; nothing else may run on the pool.
double MeasureReadBandwidth(ThreadPool& pool);

}  // namespace carpool
