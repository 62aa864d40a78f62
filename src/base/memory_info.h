// What memory this machine has left.
#pragma once

#include <cstddef>

namespace carpool {

/// Bytes that can be allocated without swapping: MemAvailable of /proc/meminfo. SIZE_MAX where it
/// cannot be read.
size_t AvailableMemory();

}  // namespace carpool
