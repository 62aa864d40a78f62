// Where logical experts live when they are replicated: logical -> physical maps and the planner
// that makes them.
//
// Pure functions, for the scale-out that comes later. The planner is DeepSeek's EPLB
// (github.com/deepseek-ai/EPLB): balanced packing of groups to nodes, greedy replication inside a
// node, balanced packing of replicas to GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace carpool {

/// One layer's placement. Physical slots are numbered GPU by GPU.
struct LayerPlacement {
  std::vector<int32_t> logical_of;                // [physical]
  std::vector<std::vector<int32_t>> physical_of;  // [logical][replica], at least one each
};

/// How a replica is picked for an assignment. All are functions of their arguments: no generator,
/// no state. kHashed: a counter-based hash of (seed, layer, position, slot); kPosition: token
/// position mod replicas.
enum class ReplicaChoice : uint8_t { kFirst, kHashed, kPosition };

struct ReplicaKey {
  uint64_t seed = 0;
  uint64_t layer = 0;
  uint64_t position = 0;  // token position in its sequence, whatever the batch
  uint64_t slot = 0;      // place among the row's experts
};
/// 64 well mixed bits of the key.
uint64_t ReplicaHash(const ReplicaKey& key);

/// The physical expert for `logical`; -1 stays -1 (unused slots never index a map).
int32_t PhysicalExpert(const LayerPlacement& placement, int32_t logical, ReplicaChoice choice,
                       const ReplicaKey& key);

/// Packs items into `packs` packs of equal size so that their loads are even: items by load
/// descending (ties: lower index), each into the not yet full pack with the least load (ties: lower
/// pack).
struct Packing {
  std::vector<size_t> pack_of;  // [items]
  std::vector<size_t> rank_in;  // [items] place inside the pack
};
Packing PackEvenly(const std::vector<double>& load, size_t packs);

struct PlacementPlan {
  size_t physical = 0;  // slots over all GPUs
  size_t groups = 1;    // expert groups (n_group)
  size_t nodes = 1;
  size_t gpus = 1;
};
/// load: [logical]. Errors (the field's name first): sizes that do not divide, fewer slots than
/// experts, loads that are negative or not finite. With groups % nodes != 0 the hierarchy is
/// dropped: one group, one node.
Result<LayerPlacement> PlanPlacement(const std::vector<double>& load, const PlacementPlan& plan);

}  // namespace carpool
