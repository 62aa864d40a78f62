// MoE layers of real models, by size: what benchmarks build synthetic weights from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "routing/gate.h"

namespace carpool {

struct MoeShape {
  std::string name;
  size_t hidden = 0;
  size_t width = 0;         // of a routed expert
  size_t shared_width = 0;  // 0: no shared expert
  GateSpec gate;            // experts and top-k in it
  // The rest of the model, for the planner (arithmetic: docs/LAB.md).
  size_t moe_layers = 1;
  double dense_parameters = 0.0;       // read every step: attention, dense MLPs, head
  double kv_bytes_per_token = 0.0;     // all layers, as bf16
  double index_bytes_per_token = 0.0;  // keys of a sparse-attention indexer
  size_t sparse_topk = 0;              // tokens attended to at most; 0: all
};

/// glm-5, qwen3-30b, qwen3-235b, deepseek-v3, demo (the bundled model). Errors list the known
/// names.
Result<MoeShape> FindMoeShape(std::string_view name);

}  // namespace carpool
