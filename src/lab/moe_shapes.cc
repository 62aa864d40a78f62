#include "lab/moe_shapes.h"

#include <string>

namespace carpool {
namespace {

struct Row {
  std::string_view name;
  size_t hidden, width, shared_width, experts, top_k, groups, groups_kept;
  bool sigmoid;
  float scale;
};

constexpr Row kRows[] = {
    {"glm-5", 6144, 2048, 2048, 256, 8, 1, 1, true, 2.5f},
    {"qwen3-30b", 2048, 768, 0, 128, 8, 1, 1, false, 1.0f},
    {"qwen3-235b", 4096, 1536, 0, 128, 8, 1, 1, false, 1.0f},
    {"deepseek-v3", 7168, 2048, 2048, 256, 8, 8, 4, true, 2.5f},
    {"demo", 256, 32, 32, 128, 8, 1, 1, true, 2.5f},
};

}  // namespace

Result<MoeShape> FindMoeShape(std::string_view name) {
  std::string known;
  for (const Row& row : kRows) {
    if (row.name == name) {
      MoeShape shape{row.name, row.hidden, row.width, row.shared_width, {}};
      shape.gate.num_experts = row.experts;
      shape.gate.top_k = row.top_k;
      shape.gate.num_groups = row.groups;
      shape.gate.groups_kept = row.groups_kept;
      shape.gate.activation = row.sigmoid ? GateActivation::kSigmoid : GateActivation::kSoftmax;
      shape.gate.has_bias = row.sigmoid;
      shape.gate.scale = row.scale;
      return shape;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return MakeError(ErrorCode::kInvalidArgument, "--shape: unknown shape '{}'; known: {}", name,
                   known);
}

}  // namespace carpool
