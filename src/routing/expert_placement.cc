#include "routing/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace carpool {
namespace {

uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Replicas of `load.size()` experts over `slots` slots: expert of each slot, and its replica
/// number.
struct Replicas {
  std::vector<size_t> expert_of;  // [slots]
  std::vector<size_t> rank_of;    // [slots]
  std::vector<size_t> count;      // [experts]
};

Replicas Replicate(const std::vector<double>& load, size_t slots) {
  Replicas r;
  r.count.assign(load.size(), 1);
  for (size_t s = 0; s < slots; ++s) {
    size_t expert = s;
    if (s >= load.size()) {
      expert = 0;
      for (size_t e = 1; e < load.size(); ++e) {
        const double now = load[expert] / static_cast<double>(r.count[expert]);
        if (load[e] / static_cast<double>(r.count[e]) > now) expert = e;
      }
    }
    r.expert_of.push_back(expert);
    r.rank_of.push_back(s < load.size() ? 0 : r.count[expert]++);
  }
  return r;
}

Status CheckPlan(const std::vector<double>& load, const PlacementPlan& p) {
  auto bad = [](const char* field, size_t divisor, size_t got) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a multiple of {}, got {}", field,
                     divisor, got);
  };
  if (load.empty())
    return MakeError(ErrorCode::kInvalidArgument, "load: wanted one number per expert, got none");
  for (size_t e = 0; e < load.size(); ++e) {
    if (!std::isfinite(load[e]) || load[e] < 0) {
      return MakeError(ErrorCode::kInvalidArgument, "load[{}]: wanted a finite number >= 0, got {}",
                       e, load[e]);
    }
  }
  if (p.groups == 0 || p.nodes == 0 || p.gpus == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "groups, nodes, gpus: wanted at least 1 each, got {}, {}, {}", p.groups,
                     p.nodes, p.gpus);
  }
  if (load.size() % p.groups != 0) return bad("load", p.groups, load.size());
  if (p.gpus % p.nodes != 0) return bad("gpus", p.nodes, p.gpus);
  if (p.physical % p.gpus != 0) return bad("physical", p.gpus, p.physical);
  if (p.physical < load.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "physical: wanted at least {} (one slot per expert), got {}", load.size(),
                     p.physical);
  }
  return {};
}

}  // namespace

uint64_t ReplicaHash(const ReplicaKey& key) {
  uint64_t h = 0x9E3779B97F4A7C15ull;
  for (const uint64_t part : {key.seed, key.layer, key.position, key.slot})
    h = Mix(h + 0x9E3779B97F4A7C15ull + part);
  return h;
}

int32_t PhysicalExpert(const LayerPlacement& placement, int32_t logical, ReplicaChoice choice,
                       const ReplicaKey& key) {
  if (logical < 0) return -1;
  CARPOOL_CHECK_LT(static_cast<size_t>(logical), placement.physical_of.size());
  const auto& replicas = placement.physical_of[static_cast<size_t>(logical)];
  switch (choice) {
    case ReplicaChoice::kFirst:
      return replicas[0];
    case ReplicaChoice::kHashed:
      return replicas[ReplicaHash(key) % replicas.size()];
    case ReplicaChoice::kPosition:
      return replicas[key.position % replicas.size()];
  }
  return replicas[0];
}

Packing PackEvenly(const std::vector<double>& load, size_t packs) {
  CARPOOL_CHECK(packs > 0 && load.size() % packs == 0);
  const size_t per_pack = load.size() / packs;
  Packing out{std::vector<size_t>(load.size()), std::vector<size_t>(load.size())};
  std::vector<size_t> order(load.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (per_pack == 1) {
    out.pack_of = order;
    return out;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return load[a] > load[b]; });
  std::vector<double> weight(packs);
  std::vector<size_t> items(packs);
  for (const size_t item : order) {
    size_t best = packs;
    for (size_t p = 0; p < packs; ++p) {
      if (items[p] < per_pack && (best == packs || weight[p] < weight[best])) best = p;
    }
    out.pack_of[item] = best;
    out.rank_in[item] = items[best]++;
    weight[best] += load[item];
  }
  return out;
}

Result<LayerPlacement> PlanPlacement(const std::vector<double>& load, const PlacementPlan& plan) {
  RETURN_IF_ERROR(CheckPlan(load, plan));
  const bool hierarchical = plan.groups % plan.nodes == 0;
  const size_t groups = hierarchical ? plan.groups : 1, nodes = hierarchical ? plan.nodes : 1;
  const size_t group_size = load.size() / groups, groups_per_node = groups / nodes;
  const size_t node_experts = load.size() / nodes, node_slots = plan.physical / nodes;
  const size_t gpus_per_node = plan.gpus / nodes, gpu_slots = plan.physical / plan.gpus;

  // Groups to nodes; `expert_at` lists the experts node by node.
  std::vector<double> group_load(groups);
  for (size_t e = 0; e < load.size(); ++e) group_load[e / group_size] += load[e];
  const Packing group_packing = PackEvenly(group_load, nodes);
  std::vector<size_t> expert_at(load.size());
  for (size_t e = 0; e < load.size(); ++e) {
    const size_t g = e / group_size;
    const size_t place = group_packing.pack_of[g] * groups_per_node + group_packing.rank_in[g];
    expert_at[place * group_size + e % group_size] = e;
  }

  LayerPlacement out;
  out.logical_of.resize(plan.physical);
  out.physical_of.resize(load.size());
  for (size_t node = 0; node < nodes; ++node) {
    std::vector<double> local(node_experts);
    for (size_t i = 0; i < node_experts; ++i) local[i] = load[expert_at[node * node_experts + i]];
    const Replicas replicas = Replicate(local, node_slots);
    std::vector<double> slot_load(node_slots);
    for (size_t s = 0; s < node_slots; ++s) {
      const size_t e = replicas.expert_of[s];
      slot_load[s] = local[e] / static_cast<double>(replicas.count[e]);
    }
    const Packing gpu_packing = PackEvenly(slot_load, gpus_per_node);
    for (size_t s = 0; s < node_slots; ++s) {
      const size_t logical = expert_at[node * node_experts + replicas.expert_of[s]];
      const size_t physical =
          node * node_slots + gpu_packing.pack_of[s] * gpu_slots + gpu_packing.rank_in[s];
      out.logical_of[physical] = static_cast<int32_t>(logical);
      auto& places = out.physical_of[logical];
      places.resize(replicas.count[replicas.expert_of[s]], -1);
      places[replicas.rank_of[s]] = static_cast<int32_t>(physical);
    }
  }
  return out;
}

}  // namespace carpool
