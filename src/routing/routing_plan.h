// RoutingPlan: row-major assignments -> expert-major slots (a counting sort), the form grouped
// matmuls want.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/views.h"
#include "ops/experts.h"

namespace carpool {

class RoutingPlan {
 public:
  /// Room for max_rows rows of at most max_set ids in [0, num_experts); no allocation later.
  RoutingPlan(size_t max_rows, size_t max_set, size_t num_experts);

  /// ids, weights: [rows, max_set]; row r uses the first counts[r]. The result views this object's
  /// memory and is valid until the next Build.
  ExpertPlan Build(MatView<const int32_t> ids, MatView<const float> weights,
                   std::span<const int32_t> counts);

 private:
  std::vector<uint32_t> place_;  // [num_experts] count, then next free slot
  std::vector<int32_t> experts_;
  std::vector<uint32_t> offsets_;
  std::vector<int32_t> row_of_slot_;
  std::vector<float> weight_of_slot_;
  std::vector<uint32_t> row_offsets_;
  std::vector<uint32_t> slot_of_;
};

}  // namespace carpool
