// The two parallel regions of a MoE layer's experts. Every expert's panels are read by exactly one
// tile of a region.
#include "ops/experts.h"

#include <algorithm>
#include <numeric>

#include "base/aligned.h"
#include "base/check.h"
#include "ops/activation_rows.h"
#include "ops/elementwise.h"

namespace carpool {
namespace {

constexpr size_t kUnitPanels = 2;  // a gate+up tile makes 32 inputs of down: one int8 block
constexpr size_t kUnit = kUnitPanels * kPanelRows;
constexpr size_t kRowChunk = 64;  // rows per kernel call; bounds the stack buffers

/// The rows of one expert in one of the two forms (ops/activation_rows.h).
struct Rows {
  const float* const* f32 = nullptr;
  const Q8Block* const* q8 = nullptr;
  const void* From(size_t first, bool as_q8) const {
    return as_q8 ? static_cast<const void*>(q8 + first) : static_cast<const void*>(f32 + first);
  }
};

/// One expert (or the shared one) with its rows: input rows, where silu(gate)*up goes, and its
/// output rows in the scratch.
struct Ride {
  const ExpertBank::Expert* expert;
  size_t rows;
  Rows in;
  Rows mid;
  size_t first_slot;  // row of the scratch where its outputs begin
};

void Call(const PackedMatrix& w, size_t panel, size_t count, const Rows& rows, size_t first,
          size_t n, bool q8, float* y, size_t y_stride, const std::byte* next,
          const KernelSet& kernels) {
  PanelCall call = w.Call(panel, count, q8);
  call.x = rows.From(first, q8);
  call.rows = n;
  call.y = y;
  call.y_stride = y_stride;
  call.next = next;
  const auto format = static_cast<size_t>(w.format());
  (q8 ? kernels.q8[format] : kernels.f32[format])(call);
}

/// Columns [column, column + x.cols) of a bias, if there is one.
void AddBiasPart(MatView<float> x, const std::vector<float>& bias, size_t column) {
  if (!bias.empty()) AddBias(x, {bias.data() + column, x.cols});
}

/// Columns [32 * unit, +32) of glu(gate x, up x) for all rows of one expert, left where down will
/// read them.
void GateUpTile(const Ride& ride, size_t unit, const Glu& glu, const OpContext& context) {
  const ExpertBank::Expert& expert = *ride.expert;
  const PackedMatrix &gate = expert.gate, &up = expert.up, &down = expert.down;
  const KernelSet& kernels = context.kernels;
  const size_t panel = unit * kUnitPanels,
               panels = std::min(kUnitPanels, gate.num_panels() - panel);
  const std::byte* up_panels = up.panels() + panel * up.panel_bytes();
  // Tiles go to threads in turn, so this thread's next one is probably this far on.
  const size_t next_panel = panel + kUnitPanels * context.pool.num_threads();
  const std::byte* next_gate =
      next_panel < gate.num_panels() ? gate.panels() + next_panel * gate.panel_bytes() : nullptr;
  alignas(64) float g[kRowChunk * kUnit], u[kRowChunk * kUnit];
  for (size_t first = 0; first < ride.rows; first += kRowChunk) {
    const size_t n = std::min(kRowChunk, ride.rows - first);
    Call(gate, panel, panels, ride.in, first, n, gate.UsesQ8(context.activations), g, kUnit,
         up_panels, kernels);
    Call(up, panel, panels, ride.in, first, n, up.UsesQ8(context.activations), u, kUnit, next_gate,
         kernels);
    const MatView<float> gates(g, n, panels * kPanelRows, kUnit);
    const MatView<float> ups(u, n, panels * kPanelRows, kUnit);
    AddBiasPart(gates, expert.gate_bias, unit * kUnit);
    AddBiasPart(ups, expert.up_bias, unit * kUnit);
    if (glu.clamped) ClampedSwigluMul(gates, ups, glu.alpha, glu.limit);
    for (size_t r = 0; r < n; ++r) {
      float* row = g + r * kUnit;
      if (!glu.clamped) kernels.swiglu(row, u + r * kUnit, panels * kPanelRows, row);
      std::fill(row + panels * kPanelRows, row + kUnit, 0.0f);
      if (down.UsesQ8(context.activations)) {
        kernels.quantize(row, kUnit, const_cast<Q8Block*>(ride.mid.q8[first + r]) + unit);
      } else {
        std::copy(row, row + kUnit, const_cast<float*>(ride.mid.f32[first + r]) + unit * kUnit);
      }
    }
  }
}

/// Room for the rows between the two regions.
Rows NewMidRows(const PackedMatrix& down, size_t rows, OpContext& context) {
  Rows mid;
  if (down.UsesQ8(context.activations)) {
    auto* memory = context.arena.Allocate<Q8Block>(rows * down.blocks());
    auto pointers = context.arena.Span<const Q8Block*>(rows);
    for (size_t r = 0; r < rows; ++r) pointers[r] = memory + r * down.blocks();
    mid.q8 = pointers.data();
    return mid;
  }
  const auto values = context.arena.Matrix<float>(rows, down.blocks() * kBlockInputs);
  auto pointers = context.arena.Span<const float*>(rows);
  for (size_t r = 0; r < rows; ++r) pointers[r] = values.Row(r);
  mid.f32 = pointers.data();
  return mid;
}

class ExpertRun {
 public:
  ExpertRun(const ExpertBank& bank, MatView<const float> x, const ExpertPlan& plan,
            MatView<float> y, OpContext& context, std::span<const float> shared_weights)
      : bank_(bank),
        x_(x),
        plan_(plan),
        y_(y),
        context_(context),
        shared_weights_(shared_weights) {}

  void Run() {
    PrepareRides();
    GateUp();
    DownCombine();
  }

 private:
  void PrepareRides() {
    const size_t slots = plan_.row_of_slot.size(), active = plan_.experts.size();
    const auto* shared = bank_.shared();
    num_rides_ = active + (shared != nullptr ? 1 : 0);
    rides_ = context_.arena.Span<Ride>(num_rides_).data();
    Rows x_rows, slot_rows;
    const auto prepare_x = [&](const ExpertBank::Expert& e) {
      for (const PackedMatrix* w : {&e.gate, &e.up}) {
        const bool q8 = w->UsesQ8(context_.activations);
        if (q8 && x_rows.q8 == nullptr) x_rows.q8 = Q8Rows(x_, context_).data();
        if (!q8 && x_rows.f32 == nullptr) x_rows.f32 = F32Rows(x_, context_.arena).data();
      }
    };
    if (active > 0) prepare_x(bank_.expert(static_cast<size_t>(plan_.experts[0])));
    if (shared != nullptr) prepare_x(*shared);
    // Pointers to each slot's row, expert after expert.
    if (active > 0 && x_rows.q8 != nullptr) {
      auto rows = context_.arena.Span<const Q8Block*>(slots);
      for (size_t s = 0; s < slots; ++s) rows[s] = x_rows.q8[plan_.row_of_slot[s]];
      slot_rows.q8 = rows.data();
    }
    if (active > 0 && x_rows.f32 != nullptr) {
      auto rows = context_.arena.Span<const float*>(slots);
      for (size_t s = 0; s < slots; ++s) rows[s] = x_rows.f32[plan_.row_of_slot[s]];
      slot_rows.f32 = rows.data();
    }
    Rows mid;
    if (active > 0)
      mid = NewMidRows(bank_.expert(static_cast<size_t>(plan_.experts[0])).down, slots, context_);
    const auto from = [](const Rows& rows, size_t first) {
      return Rows{rows.f32 == nullptr ? nullptr : rows.f32 + first,
                  rows.q8 == nullptr ? nullptr : rows.q8 + first};
    };
    for (size_t a = 0; a < active; ++a) {
      const size_t first = plan_.offsets[a];
      rides_[a] = {&bank_.expert(static_cast<size_t>(plan_.experts[a])),
                   plan_.offsets[a + 1] - first, from(slot_rows, first), from(mid, first), first};
    }
    if (shared != nullptr)
      rides_[active] = {shared, x_.rows, x_rows, NewMidRows(shared->down, x_.rows, context_),
                        slots};
  }

  void GateUp() {
    // Longest first, so that the last tiles are short ones.
    auto order = context_.arena.Span<uint32_t>(num_rides_);
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
      return rides_[a].rows != rides_[b].rows ? rides_[a].rows > rides_[b].rows : a < b;
    });
    auto ends = context_.arena.Span<size_t>(num_rides_);
    size_t tiles = 0, work_bytes = 0;
    for (size_t i = 0; i < num_rides_; ++i) {
      const Ride& ride = rides_[order[i]];
      tiles += DivCeil(ride.expert->gate.num_panels(), kUnitPanels);
      ends[i] = tiles;
      work_bytes += (ride.expert->gate.bytes() + ride.expert->up.bytes()) * (3 + ride.rows) / 4;
    }
    RunTasks(context_.pool, tiles, WorthForking(work_bytes, 1), [&](size_t task, size_t) {
      const auto i =
          static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), task) - ends.begin());
      GateUpTile(rides_[order[i]], task - (i == 0 ? 0 : ends[i - 1]), bank_.glu(), context_);
    });
  }

  void DownCombine() {
    const size_t hidden = y_.cols, panels = DivCeil(hidden, kPanelRows),
                 threads = context_.pool.num_threads();
    const size_t slots = plan_.row_of_slot.size(),
                 scratch_rows = slots + (bank_.shared() != nullptr ? x_.rows : 0);
    size_t panel_bytes = 0, work_bytes = 0;
    for (size_t a = 0; a < num_rides_; ++a) {
      panel_bytes += rides_[a].expert->down.panel_bytes();
      work_bytes += rides_[a].expert->down.bytes() * (3 + rides_[a].rows) / 4;
    }
    // Tiles of some 256 KB of weights whose scratch stays in L2, and at least eight per thread.
    constexpr size_t kTileBytes = size_t{256} << 10, kScratchBytes = size_t{256} << 10;
    size_t per_tile =
        std::min(kTileBytes / std::max<size_t>(1, panel_bytes),
                 kScratchBytes / std::max<size_t>(1, scratch_rows * kPanelRows * sizeof(float)));
    per_tile = std::max<size_t>(1, std::min(per_tile, panels / (8 * threads)));

    const size_t width = per_tile * kPanelRows;
    size_t most_slots = 0;
    for (size_t r = 0; r < y_.rows; ++r)
      most_slots = std::max<size_t>(most_slots, plan_.row_offsets[r + 1] - plan_.row_offsets[r]);
    // A row's weights, with one place behind them for a weighted shared expert's.
    weights_ = context_.arena.Span<float>(slots + y_.rows).data();
    for (size_t r = 0; r < y_.rows; ++r) {
      for (size_t i = plan_.row_offsets[r]; i < plan_.row_offsets[r + 1]; ++i)
        weights_[i + r] = plan_.weight_of_slot[plan_.slot_of[i]];
      if (!shared_weights_.empty()) weights_[plan_.row_offsets[r + 1] + r] = shared_weights_[r];
    }
    auto scratch = context_.arena.Matrix<float>(threads * (scratch_rows + 1),
                                                width);  // one row more: a row's tail
    auto terms = context_.arena.Matrix<const float*>(threads, most_slots + 1);
    RunTasks(context_.pool, DivCeil(panels, per_tile), WorthForking(work_bytes, 1),
             [&](size_t task, size_t worker) {
               const auto mine = scratch.Rows(worker * (scratch_rows + 1), scratch_rows + 1);
               const size_t first = task * per_tile;
               DownTile(first, std::min(per_tile, panels - first), mine, terms.Row(worker));
             });
  }

  /// Outputs [16 * first, ...) of every row: all experts' contributions into the scratch, then each
  /// row's sum.
  void DownTile(size_t first, size_t count, MatView<float> scratch, const float** terms) const {
    for (size_t a = 0; a < num_rides_; ++a) {
      const PackedMatrix& down = rides_[a].expert->down;
      // The next expert's panels, or the first one's of this thread's next tile.
      const bool last = a + 1 == num_rides_;
      const PackedMatrix& w = rides_[last ? 0 : a + 1].expert->down;
      const size_t next_panel = last ? first + count * context_.pool.num_threads() : first;
      const std::byte* next =
          next_panel < w.num_panels() ? w.panels() + next_panel * w.panel_bytes() : nullptr;
      Call(down, first, count, rides_[a].mid, 0, rides_[a].rows, down.UsesQ8(context_.activations),
           scratch.Row(rides_[a].first_slot), scratch.stride, next, context_.kernels);
      const auto outputs = scratch.Rows(rides_[a].first_slot, rides_[a].rows);
      AddBiasPart({outputs.data, outputs.rows, count * kPanelRows, outputs.stride},
                  rides_[a].expert->down_bias, first * kPanelRows);
    }
    const size_t column = first * kPanelRows,
                 width = std::min(count * kPanelRows, y_.cols - column);
    const size_t slots = plan_.row_of_slot.size();
    for (size_t r = 0; r < y_.rows; ++r) {
      const size_t begin = plan_.row_offsets[r];
      size_t n = plan_.row_offsets[r + 1] - begin;
      for (size_t j = 0; j < n; ++j) terms[j] = scratch.Row(plan_.slot_of[begin + j]);
      const float* last = bank_.shared() != nullptr ? scratch.Row(slots + r) : nullptr;
      if (!shared_weights_.empty()) {
        terms[n++] = last;
        last = nullptr;
      }
      const bool whole = width == count * kPanelRows;
      float* out = whole ? y_.Row(r) + column : scratch.Row(scratch.rows - 1);
      context_.kernels.combine(terms, weights_ + begin + r, n, last, count * kPanelRows, out);
      if (!whole) std::copy(out, out + width, y_.Row(r) + column);
    }
  }

  const ExpertBank& bank_;
  const MatView<const float> x_;
  const ExpertPlan& plan_;
  const MatView<float> y_;
  OpContext& context_;
  Ride* rides_ = nullptr;
  size_t num_rides_ = 0;
  const std::span<const float> shared_weights_;  // [rows] or empty
  float* weights_ = nullptr;                     // [slots + rows] row-major
};

}  // namespace

void RunExperts(const ExpertBank& bank, MatView<const float> x, const ExpertPlan& plan,
                MatView<float> y, OpContext& context, std::span<const float> shared_weights) {
  CARPOOL_CHECK(x.cols == bank.hidden() && y.cols == bank.hidden() && x.rows == y.rows);
  CARPOOL_CHECK(shared_weights.empty() ||
                (bank.shared() != nullptr && shared_weights.size() == x.rows));
  if (x.rows == 0) return;
  ArenaScope scope(context.arena);
  ExpertRun(bank, x, plan, y, context, shared_weights).Run();
}

}  // namespace carpool
