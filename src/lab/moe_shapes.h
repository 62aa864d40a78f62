// MoE layers of real models, by size: what benchmarks build synthetic weights from.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "routing/gate.h"

namespace carpool {

struct MoeShape {
  std::string_view name;
  size_t hidden = 0;
  size_t width = 0;         // of a routed expert
  size_t shared_width = 0;  // 0: no shared expert
  GateSpec gate;            // experts and top-k in it
};

/// glm-5, qwen3-30b, qwen3-235b, deepseek-v3, demo (the bundled model). Errors list the known
/// names.
Result<MoeShape> FindMoeShape(std::string_view name);

}  // namespace carpool
