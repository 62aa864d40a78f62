// What a cache made from a checkpoint is checked against.
#pragma once

#include <cstdint>
#include <string>

#include "weights/checkpoint.h"

namespace carpool {

/// Changes when the weights do: size and time of change of every weight file of `path` (a directory
/// or one file), every tensor's name, type and shape, and a sample of its bytes. The sample keeps
/// the cost far below reading the checkpoint.
uint64_t ContentKey(const Checkpoint& checkpoint, const std::string& path);

}  // namespace carpool
