// Writing a sharded safetensors checkpoint piece by piece, so that an interrupted run leaves
// nothing that loads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/checkpoint.h"

namespace carpool {

/// A tensor to be written; its bytes come later, in order.
struct PlannedTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
};

/// Writes `tensors` to `path` by way of `path`.tmp, which is renamed when complete. `write` is
/// called once and hands the bytes of every tensor, in order, to `sink`. Errors: InvalidArgument
/// (cannot be written; the temporary file is removed).
using ByteSink = std::function<Status(std::span<const std::byte>)>;
Status WriteSafetensors(const std::string& path, std::span<const PlannedTensor> tensors,
                        const std::function<Status(const ByteSink& sink)>& write);

/// Header and data bytes of the file WriteSafetensors makes.
uint64_t SafetensorsFileBytes(std::span<const PlannedTensor> tensors);

}  // namespace carpool
