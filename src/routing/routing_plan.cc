#include "routing/routing_plan.h"

#include <algorithm>

namespace carpool {

RoutingPlan::RoutingPlan(size_t max_rows, size_t max_set, size_t num_experts)
    : place_(num_experts),
      experts_(std::min(num_experts, max_rows * max_set)),
      offsets_(experts_.size() + 1),
      row_of_slot_(max_rows * max_set),
      weight_of_slot_(max_rows * max_set),
      row_offsets_(max_rows + 1),
      slot_of_(max_rows * max_set) {}

ExpertPlan RoutingPlan::Build(MatView<const int32_t> ids, MatView<const float> weights,
                              std::span<const int32_t> counts) {
  const size_t rows = counts.size();
  std::fill(place_.begin(), place_.end(), 0u);
  for (size_t r = 0; r < rows; ++r) {
    const int32_t* row = ids.Row(r);
    for (int32_t i = 0; i < counts[r]; ++i) ++place_[static_cast<size_t>(row[i])];
  }
  size_t active = 0;
  uint32_t slots = 0;
  for (size_t e = 0; e < place_.size(); ++e) {
    const uint32_t count = place_[e];
    if (count == 0) continue;
    experts_[active] = static_cast<int32_t>(e);
    offsets_[active++] = slots;
    place_[e] = slots;
    slots += count;
  }
  offsets_[active] = slots;
  uint32_t next = 0;
  for (size_t r = 0; r < rows; ++r) {
    row_offsets_[r] = next;
    const int32_t* row = ids.Row(r);
    const float* w = weights.Row(r);
    for (int32_t i = 0; i < counts[r]; ++i) {
      const uint32_t slot = place_[static_cast<size_t>(row[i])]++;
      row_of_slot_[slot] = static_cast<int32_t>(r);
      weight_of_slot_[slot] = w[i];
      slot_of_[next++] = slot;
    }
  }
  row_offsets_[rows] = next;
  return {{experts_.data(), active},       {offsets_.data(), active + 1},
          {row_of_slot_.data(), slots},    {weight_of_slot_.data(), slots},
          {row_offsets_.data(), rows + 1}, {slot_of_.data(), slots}};
}

}  // namespace carpool
