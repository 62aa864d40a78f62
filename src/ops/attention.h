// Attention over gathered keys: grouped-query, and absorbed multi-head latent attention.
//
// Keys come as pointers, ascending by position, so that the dense and the sparse path run the same
// arithmetic in the same order: a row's result depends on its own keys only, never on the batch,
// the pages or the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/views.h"
#include "ops/op_context.h"

namespace carpool {

/// Floats that key, query and accumulator rows are padded to (with zeros): no kernel has a tail.
inline constexpr size_t kAttentionPad = 16;

/// What all rows of a call share. Query head h reads keys at `entry + h / heads_per_kv *
/// kv_stride` and values `value_offset` floats behind them. Latent attention: one key head for all
/// query heads, whose first `value_width` numbers are the value too.
struct AttentionHeads {
  size_t heads = 0;         // query heads
  size_t heads_per_kv = 0;  // query heads that share a key head
  size_t key_width = 0;     // a multiple of kAttentionPad
  size_t value_width = 0;   // values are readable up to the next multiple of kAttentionPad
  size_t kv_stride = 0;
  size_t value_offset = 0;
  float scale = 0.0f;
  /// [heads] or null: a learned logit that takes part in the softmax and has no value.
  const float* sinks = nullptr;
};

/// One token row's attention.
struct AttentionRow {
  const float* q;            // [heads, key_width]: rotated, zeros behind the head's own numbers
  const float* const* keys;  // [num_keys] entries, see AttentionHeads
  size_t num_keys;           // >= 1
  float* out;                // [heads, value_width]: sum of p * value
};

/// out[h] = sum_t softmax_t(scale * q[h]·key_t) * value_t. One parallel region over (row, group of
/// heads).
void Attend(std::span<const AttentionRow> rows, const AttentionHeads& heads, OpContext& context);

}  // namespace carpool
