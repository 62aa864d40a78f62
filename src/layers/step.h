// Step: the token rows that go through the model together, and what a step leaves behind besides
// logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/views.h"
#include "layers/kv_cache.h"
#include "ops/op_context.h"
#include "routing/router.h"

namespace carpool {

/// Values of StepBatch::bad_layers besides layer numbers.
inline constexpr int32_t kFinite = -1, kBadEmbedding = -2, kBadHead = -3;

/// Parallel arrays, one element per token row. Rows of one sequence stand in ascending position
/// order.
struct StepBatch {
  std::span<const int32_t> tokens;
  std::span<const uint32_t> positions;  // 0-based, absolute
  std::span<const uint32_t> sequences;  // index into `tables`
  std::span<const RowInfo> rows;
  std::span<const uint8_t> wants_logits;     // rows whose logits are computed, in row order
  std::span<const PageTable* const> tables;  // with room for every position above
  /// Empty, or [rows]: filled with where the row stopped being finite: a layer, kBadEmbedding,
  /// kBadHead, or kFinite.
  std::span<int32_t> bad_layers = {};

  size_t size() const { return tokens.size(); }
};

/// Which experts every row of the step took; filled by MoE layers when somebody asks.
class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  virtual void OnRouted(size_t moe_layer, const RoutedStep& routed) = 0;
  /// The positions a row's attention selected, called for sparse rows only.
  virtual void OnSelectedKeys(size_t layer, size_t row, std::span<const uint32_t> positions) = 0;
};

/// Sums since construction or Clear(). Times in nanoseconds of wall clock.
struct StepStats {
  std::vector<RoutingStats> moe;  // [moe layers]
  uint64_t steps = 0;
  uint64_t rows = 0;
  uint64_t dense_attention_rows = 0;  // (row, layer) pairs that attended to every visible key
  uint64_t sparse_attention_rows =
      0;                      // (row, layer) pairs that attended to the keys the indexer selected
  uint64_t expert_bytes = 0;  // bytes of distinct routed experts read
  uint64_t attention_ns = 0;  // projections, indexer and the keys themselves
  uint64_t indexer_ns = 0;    // of it: scores of the indexer and the choice of positions
  uint64_t keys_ns = 0;       // of it: softmax over the keys
  uint64_t router_ns = 0;     // router matmul, gate and policy
  uint64_t experts_ns = 0;    // routed and shared experts
  uint64_t dense_ns = 0;      // dense MLP layers
  uint64_t head_ns = 0;       // final norm and logits
  uint64_t total_ns = 0;

  void Clear() {
    const size_t layers = moe.size();
    *this = StepStats();
    moe.resize(layers);
  }
};

/// cos and sin of the rows' rope angles, [rows, dim / 2] each; computed once per step.
struct RopeAngles {
  MatView<float> cos;
  MatView<float> sin;
};

/// What the layers of one step share.
struct StepContext {
  OpContext& ops;
  const StepBatch& batch;
  KvCache& kv;
  Router* router;
  StepStats& stats;
  RoutingObserver* observer;  // may be null
  RopeAngles rope;
  /// Keys selected by the nearest full indexer layer: for sparse rows positions, ascending; empty =
  /// all keys.
  std::span<std::span<const uint32_t>> selected;  // [rows]
  MatView<uint32_t> selection_storage;            // [rows, index_topk]; what `selected` points into
};

}  // namespace carpool
