// The routed experts of one MoE layer as one grouped operation: every distinct expert is read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/views.h"
#include "ops/op_context.h"
#include "quant/panel_cache.h"

namespace carpool {

/// Expert-major view of the routing of one layer in one step; built by routing/routing_plan.h.
/// A slot is one assignment (row, expert, weight). Slots are grouped by expert, experts ascending.
struct ExpertPlan {
  std::span<const int32_t> experts;  // [num_active] distinct expert ids, ascending
  std::span<const uint32_t>
      offsets;  // [num_active + 1] slots of experts[i]: [offsets[i], offsets[i+1])
  std::span<const int32_t> row_of_slot;   // [num_slots]
  std::span<const float> weight_of_slot;  // [num_slots]
  // The same slots row-major, each row in slot order (the order in which its outputs are summed).
  std::span<const uint32_t> row_offsets;  // [rows + 1]
  std::span<const uint32_t>
      slot_of;  // [num_slots] row r's slots: slot_of[row_offsets[r] ... row_offsets[r+1])
};

/// The gated unit between the two halves of an expert: silu(gate) * up, or gpt-oss's clamped form
/// (ops/elementwise.h, ClampedSwigluMul).
struct Glu {
  bool clamped = false;
  float alpha = 1.702f;
  float limit = 7.0f;
};

/// glu(gate(x), up(x)), then down. Storage views of one expert.
struct ExpertSource {
  StoredMatrix gate;  // [width, hidden]
  StoredMatrix up;    // [width, hidden]
  StoredMatrix down;  // [hidden, width]
  // Added to the three products; empty in most families.
  std::vector<float> gate_bias = {};
  std::vector<float> up_bias = {};
  std::vector<float> down_bias = {};
};

struct ExpertPackOptions {
  std::optional<WeightFormat> format = {};  // null: as stored
  Glu glu = {};
  /// When there is one: has the routed experts of earlier starts and gets those that it lacks.
  PanelCache* cache = nullptr;
  /// Called after every portion of the routed experts: their sources are not read again.
  std::function<void()> after_portion = {};
};

/// All experts of one layer, packed. Immutable after Pack.
class ExpertBank {
 public:
  ExpertBank() = default;
  /// Packs in parallel into one block of memory, needing none besides. `shared` may be null. All
  /// experts have the same shape and formats; the shared expert (always active, weight 1, not in
  /// the plan) may have its own. Errors name the tensor; Exhausted, with numbers, when the block
  /// does not fit into the free memory.
  static Result<ExpertBank> Pack(std::span<const ExpertSource> experts, const ExpertSource* shared,
                                 ThreadPool& pool, const ExpertPackOptions& options = {});

  size_t num_experts() const { return experts_.size(); }
  size_t hidden() const { return hidden_; }
  size_t width() const { return width_; }
  /// Bytes one expert's weights take, i.e. what one more distinct expert makes the machine read.
  size_t bytes_per_expert() const;
  size_t bytes_shared() const;
  WeightFormat format() const;

  struct Expert {
    PackedMatrix gate, up, down;
    std::vector<float> gate_bias, up_bias, down_bias;  // empty, or padded to whole panels
  };
  const Expert& expert(size_t e) const { return experts_[e]; }
  const Expert* shared() const { return has_shared_ ? &shared_ : nullptr; }
  const Glu& glu() const { return glu_; }

 private:
  PageBuffer slab_;  // what the routed experts' matrices point into, expert by expert
  std::vector<Expert> experts_;
  Expert shared_;
  bool has_shared_ = false;
  Glu glu_;
  size_t hidden_ = 0;
  size_t width_ = 0;
};

/// y[r, :] = sum over r's slots, in slot order, of weight * expert(x[r, :]), then + shared(x[r,
/// :]), times shared_weights[r] unless that is empty. x, y: [rows, hidden], must not alias. Two
/// parallel regions (gate+up+SwiGLU, then down+combine). A row without slots gets only the shared
/// part. Bits of a row do not depend on other rows or the thread count.
void RunExperts(const ExpertBank& bank, MatView<const float> x, const ExpertPlan& plan,
                MatView<float> y, OpContext& context, std::span<const float> shared_weights = {});

}  // namespace carpool
