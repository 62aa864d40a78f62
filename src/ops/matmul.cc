#include "ops/matmul.h"

#include <algorithm>

#include "base/aligned.h"
#include "ops/activation_rows.h"

namespace carpool {
namespace {

/// x of one weight in the form its kernel wants.
struct Operand {
  const PackedMatrix* w;
  MatView<float> y;
  bool q8;
  const void* rows;  // const float* const* or const Q8Block* const*
};

/// Panels [first, first + count) of one weight. Only the last panel can stick out of y; it goes
/// through a copy.
void RunPanels(const Operand& op, size_t first, size_t count, const KernelSet& kernels) {
  const auto format = static_cast<size_t>(op.w->format());
  const PanelFn kernel = op.q8 ? kernels.q8[format] : kernels.f32[format];
  const size_t full =
      std::min(count, op.w->rows() / kPanelRows - std::min(first, op.w->rows() / kPanelRows));
  PanelCall call = op.w->Call(first, full, op.q8);
  call.x = op.rows;
  call.rows = op.y.rows;
  call.y = op.y.data + first * kPanelRows;
  call.y_stride = op.y.stride;
  if (full > 0) kernel(call);
  if (full == count) return;

  constexpr size_t kChunk = 64;
  alignas(64) float tail[kChunk * kPanelRows];
  const size_t column = (first + full) * kPanelRows, width = op.w->rows() - column;
  call = op.w->Call(first + full, 1, op.q8);
  call.y = tail;
  call.y_stride = kPanelRows;
  for (size_t r = 0; r < op.y.rows; r += kChunk) {
    call.rows = std::min(kChunk, op.y.rows - r);
    call.x = op.q8 ? static_cast<const void*>(static_cast<const Q8Block* const*>(op.rows) + r)
                   : static_cast<const void*>(static_cast<const float* const*>(op.rows) + r);
    kernel(call);
    for (size_t i = 0; i < call.rows; ++i)
      std::copy_n(tail + i * kPanelRows, width, op.y.Row(r + i) + column);
  }
}

/// Enough tiles to balance, each big enough to be worth handing out.
size_t PanelsPerTile(const PackedMatrix& w, size_t total_panels, size_t threads) {
  constexpr size_t kMaxTileBytes = size_t{128} << 10;
  const size_t for_balance = total_panels / (threads * 8);
  return std::max<size_t>(
      1, std::min(for_balance, kMaxTileBytes / std::max<size_t>(1, w.panel_bytes())));
}

void Run(std::span<const Operand> operands, OpContext& context) {
  size_t panels = 0, bytes = 0, max_rows = 0;
  for (const auto& op : operands) {
    panels += op.w->num_panels();
    bytes += op.w->bytes();
    max_rows = std::max(max_rows, op.y.rows);
  }
  if (max_rows == 0) return;
  const size_t threads = context.pool.num_threads();
  size_t tiles = 0;
  for (const auto& op : operands)
    tiles += DivCeil(op.w->num_panels(), PanelsPerTile(*op.w, panels, threads));
  RunTasks(context.pool, tiles, WorthForking(bytes, max_rows), [&](size_t task, size_t) {
    for (const auto& op : operands) {
      const size_t per_tile = PanelsPerTile(*op.w, panels, threads);
      const size_t n = DivCeil(op.w->num_panels(), per_tile);
      if (task < n) {
        const size_t first = task * per_tile;
        return RunPanels(op, first, std::min(per_tile, op.w->num_panels() - first),
                         context.kernels);
      }
      task -= n;
    }
  });
}

}  // namespace

void MatMul(MatView<const float> x, const PackedMatrix& w, MatView<float> y, OpContext& context) {
  const MatMulTarget target{&w, y};
  MatMulMany(x, {&target, 1}, context);
}

void MatMulMany(MatView<const float> x, std::span<const MatMulTarget> targets, OpContext& context) {
  ArenaScope scope(context.arena);
  std::span<const float*> f32_rows;
  std::span<const Q8Block*> q8_rows;
  auto operands = context.arena.Span<Operand>(targets.size());
  for (size_t j = 0; j < targets.size(); ++j) {
    const auto& t = targets[j];
    CARPOOL_CHECK_EQ(t.w->cols(), x.cols);
    CARPOOL_CHECK(t.y.rows == x.rows && t.y.cols >= t.w->rows());
    const bool q8 = t.w->UsesQ8(context.activations);
    if (q8 && q8_rows.empty()) q8_rows = Q8Rows(x, context);
    if (!q8 && f32_rows.empty()) f32_rows = F32Rows(x, context.arena);
    operands[j] = {
        t.w, t.y, q8,
        q8 ? static_cast<const void*>(q8_rows.data()) : static_cast<const void*>(f32_rows.data())};
  }
  Run(operands, context);
}

void MatMulPerHead(MatView<const float> x, size_t x_stride, std::span<const PackedMatrix> w,
                   MatView<float> y, OpContext& context) {
  ArenaScope scope(context.arena);
  auto operands = context.arena.Span<Operand>(w.size());
  for (size_t h = 0; h < w.size(); ++h) {
    const size_t in = w[h].cols(), out = w[h].rows();
    const MatView<const float> xh(x.data + h * x_stride, x.rows, in, x.stride);
    const bool q8 = w[h].UsesQ8(context.activations);
    operands[h] = {&w[h], MatView<float>(y.data + h * out, y.rows, out, y.stride), q8,
                   q8 ? static_cast<const void*>(Q8Rows(xh, context).data())
                      : static_cast<const void*>(F32Rows(xh, context.arena).data())};
  }
  Run(operands, context);
}

}  // namespace carpool
