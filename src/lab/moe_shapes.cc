#include "lab/moe_shapes.h"

#include <string>

namespace carpool {
namespace {

struct ShapeRow {
  std::string_view name;
  size_t hidden, width, shared_width, experts, top_k, groups, groups_kept;
  bool sigmoid;
  float scale;
  size_t moe_layers;
  double dense, kv, index;
  size_t sparse_topk;
};

constexpr ShapeRow kShapes[] = {
    {"glm-5", 6144, 2048, 2048, 256, 8, 1, 1, true, 2.5f, 75, 15.23e9, 89856, 19968, 2048},
    {"qwen3-30b", 2048, 768, 0, 128, 8, 1, 1, false, 1.0f, 48, 1.217e9, 98304, 0, 0},
    {"qwen3-235b", 4096, 1536, 0, 128, 8, 1, 1, false, 1.0f, 94, 7.325e9, 192512, 0, 0},
    {"deepseek-v3", 7168, 2048, 2048, 256, 8, 8, 4, true, 2.5f, 58, 13.53e9, 70272, 0, 0},
    {"demo", 256, 32, 32, 128, 8, 1, 1, true, 2.5f, 5, 2.996e6, 960, 384, 64},
};

}  // namespace

Result<MoeShape> FindMoeShape(std::string_view name) {
  std::string known;
  for (const ShapeRow& row : kShapes) {
    if (row.name == name) {
      MoeShape shape;
      shape.name = row.name;
      shape.hidden = row.hidden;
      shape.width = row.width;
      shape.shared_width = row.shared_width;
      shape.gate.num_experts = row.experts;
      shape.gate.top_k = row.top_k;
      shape.gate.num_groups = row.groups;
      shape.gate.groups_kept = row.groups_kept;
      shape.gate.activation = row.sigmoid ? GateActivation::kSigmoid : GateActivation::kSoftmax;
      shape.gate.has_bias = row.sigmoid;
      shape.gate.scale = row.scale;
      shape.moe_layers = row.moe_layers;
      shape.dense_parameters = row.dense;
      shape.kv_bytes_per_token = row.kv;
      shape.index_bytes_per_token = row.index;
      shape.sparse_topk = row.sparse_topk;
      return shape;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return MakeError(ErrorCode::kInvalidArgument, "--shape: unknown shape '{}'; known: {}", name,
                   known);
}

}  // namespace carpool
