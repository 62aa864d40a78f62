#include "routing/expert_demand.h"

namespace carpool {

void ExpertDemand::Collect(const PolicyInput& in, size_t top_k) {
  std::fill(stays_.begin(), stays_.end(), uint8_t{0});
  std::fill(rows_.begin(), rows_.end(), 0u);
  std::fill(mass_.begin(), mass_.end(), int64_t{0});
  for (const uint32_t r : in.fixed) {
    const int32_t* ids = in.vanilla.Row(r);
    for (size_t i = 0; i < top_k; ++i) stays_[static_cast<size_t>(ids[i])] = 1;
  }
  for (const uint32_t r : in.active) {
    const int32_t* ids = in.vanilla.Row(r);
    const float* score = in.scores.Row(r);
    for (size_t i = 0; i < top_k; ++i) {
      const auto e = static_cast<size_t>(ids[i]);
      ++rows_[e];
      mass_[e] += MassUnits(score[e]);
    }
  }
}

void ExpertDemand::Apply(const PolicyInput& in, size_t top_k, const PolicyOutput& out) const {
  for (const uint32_t r : in.active) {
    const int32_t* ids = in.vanilla.Row(r);
    size_t count = 0;
    for (size_t i = 0; i < top_k; ++i) {
      if (i == 0 || stays_[static_cast<size_t>(ids[i])] != 0)
        out.Set(r, count++, ids[i], SlotReason::kOwn);
    }
    out.counts[r] = static_cast<int32_t>(count);
  }
}

}  // namespace carpool
