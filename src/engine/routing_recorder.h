// RoutingRecorder: what routing did in the last step, per expert and per row, and sums since the
// start.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/step.h"

namespace carpool {

class RoutingRecorder final : public RoutingObserver {
 public:
  RoutingRecorder(size_t moe_layers, size_t num_experts, size_t max_rows);

  /// Before a step of `rows` rows. captured[r] != 0: keep the row's expert ids.
  void Begin(size_t rows, std::span<const uint8_t> captured);
  void OnRouted(size_t moe_layer, const RoutedStep& routed) override;
  void OnSelectedKeys(size_t layer, size_t row, std::span<const uint32_t> positions) override;

  size_t layers() const { return layers_; }
  size_t experts() const { return experts_; }
  // The last step.
  uint64_t distinct_total() const { return distinct_total_; }       // summed over the layers
  std::span<const uint32_t> distinct() const { return distinct_; }  // [layers]
  /// [layers, experts]: rows that chose the expert themselves, and rows that rode on it.
  std::span<const uint16_t> own_rows() const { return own_rows_; }
  std::span<const uint16_t> rides() const { return rides_; }
  uint32_t row_assignments(size_t row) const { return row_assignments_[row]; }
  uint32_t row_piggybacks(size_t row) const { return row_piggybacks_[row]; }
  /// [layers, width] ids of a captured row, -1 = unused.
  std::span<const int32_t> captured_row(size_t row) const;
  size_t captured_width() const { return width_; }
  // Since construction or ClearTotals(): rows per expert, [layers, experts].
  std::span<const uint64_t> expert_rows() const { return expert_rows_; }
  void ClearTotals();

  /// Forwards everything to another observer; may be null.
  void set_next(RoutingObserver* next) { next_ = next; }

 private:
  size_t layers_;
  size_t experts_;
  RoutingObserver* next_ = nullptr;
  uint64_t distinct_total_ = 0;
  std::vector<uint32_t> distinct_;
  std::vector<uint16_t> own_rows_;
  std::vector<uint16_t> rides_;
  std::vector<uint64_t> expert_rows_;
  std::vector<uint32_t> row_assignments_;
  std::vector<uint32_t> row_piggybacks_;
  std::vector<int32_t> capture_index_;  // [rows], -1 = not captured
  size_t num_captured_ = 0;
  size_t width_ = 0;
  std::vector<int32_t> captured_;  // [captured rows, layers, width]
};

}  // namespace carpool
