#include "engine/routing_recorder.h"

#include <algorithm>

namespace carpool {

RoutingRecorder::RoutingRecorder(size_t moe_layers, size_t num_experts, size_t max_rows)
    : layers_(moe_layers),
      experts_(num_experts),
      distinct_(moe_layers),
      own_rows_(moe_layers * num_experts),
      rides_(moe_layers * num_experts),
      expert_rows_(moe_layers * num_experts),
      row_assignments_(max_rows),
      row_piggybacks_(max_rows),
      capture_index_(max_rows, -1) {}

void RoutingRecorder::Begin(size_t rows, std::span<const uint8_t> captured) {
  distinct_total_ = 0;
  std::fill(distinct_.begin(), distinct_.end(), 0u);
  std::fill(own_rows_.begin(), own_rows_.end(), uint16_t{0});
  std::fill(rides_.begin(), rides_.end(), uint16_t{0});
  std::fill_n(row_assignments_.begin(), rows, 0u);
  std::fill_n(row_piggybacks_.begin(), rows, 0u);
  num_captured_ = 0;
  for (size_t r = 0; r < rows; ++r) {
    capture_index_[r] = captured[r] != 0 ? static_cast<int32_t>(num_captured_++) : -1;
  }
}

void RoutingRecorder::OnRouted(size_t moe_layer, const RoutedStep& routed) {
  const size_t base = moe_layer * experts_;
  distinct_[moe_layer] = static_cast<uint32_t>(routed.stats.distinct_experts);
  distinct_total_ += routed.stats.distinct_experts;
  for (size_t r = 0; r < routed.counts.size(); ++r) {
    const int32_t* ids = routed.ids.Row(r);
    const SlotReason* reasons = routed.reasons.Row(r);
    for (size_t s = 0; s < static_cast<size_t>(routed.counts[r]); ++s) {
      const auto id = static_cast<size_t>(ids[s]);
      if (id >= experts_) continue;  // a shared expert
      const bool ride = reasons[s] == SlotReason::kPiggyback;
      ++(ride ? rides_ : own_rows_)[base + id];
      ++expert_rows_[base + id];
      ++row_assignments_[r];
      row_piggybacks_[r] += ride;
    }
  }
  if (num_captured_ > 0) {
    if (moe_layer == 0) {
      width_ = routed.ids.cols;
      captured_.assign(num_captured_ * layers_ * width_, -1);
    }
    for (size_t r = 0; r < routed.counts.size(); ++r) {
      if (capture_index_[r] < 0) continue;
      const auto slot = static_cast<size_t>(capture_index_[r]) * layers_ + moe_layer;
      std::copy_n(routed.ids.Row(r), width_,
                  captured_.begin() + static_cast<std::ptrdiff_t>(slot * width_));
    }
  }
  if (next_ != nullptr) next_->OnRouted(moe_layer, routed);
}

void RoutingRecorder::OnSelectedKeys(size_t layer, size_t row,
                                     std::span<const uint32_t> positions) {
  if (next_ != nullptr) next_->OnSelectedKeys(layer, row, positions);
}

std::span<const int32_t> RoutingRecorder::captured_row(size_t row) const {
  const auto slot = static_cast<size_t>(capture_index_[row]);
  return std::span(captured_).subspan(slot * layers_ * width_, layers_ * width_);
}

void RoutingRecorder::ClearTotals() {
  std::fill(expert_rows_.begin(), expert_rows_.end(), uint64_t{0});
}

}  // namespace carpool
