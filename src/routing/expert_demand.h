// ExpertDemand: who wants which expert in this step; what the budgeted policies rank experts by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "routing/policy.h"

namespace carpool {

/// A sum of gate scores that does not depend on the order of its terms: 34 fractional bits, terms
/// clamped to ±65536 (4096 rows of the largest term still fit); NaN counts as 0. Row order
/// therefore never decides an expert's fate.
inline int64_t MassUnits(float score) {
  if (score != score) return 0;
  return static_cast<int64_t>(static_cast<double>(std::clamp(score, -65536.0f, 65536.0f)) * 0x1p34);
}

class ExpertDemand {
 public:
  explicit ExpertDemand(size_t num_experts)
      : stays_(num_experts), rows_(num_experts), mass_(num_experts), order_(num_experts) {}

  /// Counts, per expert, the active rows whose vanilla choice has it and their scores for it, and
  /// marks the experts of fixed rows as staying (they are loaded anyway).
  void Collect(const PolicyInput& in, size_t top_k);
  /// The best `budget` of the wanted, not yet staying experts stay too, ordered by `before(a, b)`,
  /// then lower id.
  template <typename Before>
  void KeepBest(size_t budget, Before before) {
    size_t n = 0;
    for (size_t e = 0; e < rows_.size(); ++e) {
      if (rows_[e] > 0 && stays_[e] == 0) order_[n++] = static_cast<int32_t>(e);
    }
    const auto first = order_.begin();
    std::sort(first, first + static_cast<ptrdiff_t>(n), [&](int32_t a, int32_t b) {
      const auto ea = static_cast<size_t>(a), eb = static_cast<size_t>(b);
      if (before(ea, eb)) return true;
      if (before(eb, ea)) return false;
      return a < b;
    });
    for (size_t i = 0; i < std::min(budget, n); ++i) stays_[static_cast<size_t>(order_[i])] = 1;
  }
  /// Rows keep the vanilla choices that stay, and their best one in any case.
  void Apply(const PolicyInput& in, size_t top_k, const PolicyOutput& out) const;

  uint32_t rows(size_t e) const { return rows_[e]; }
  int64_t mass(size_t e) const { return mass_[e]; }

 private:
  std::vector<uint8_t> stays_;  // [N]
  std::vector<uint32_t> rows_;  // [N] active rows that chose the expert
  std::vector<int64_t> mass_;   // [N] their scores for it, in MassUnits
  std::vector<int32_t> order_;  // [N] scratch
};

}  // namespace carpool
