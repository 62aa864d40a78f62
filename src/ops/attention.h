// Attention over gathered keys: absorbed multi-head latent attention, and the scores of the DSA
// indexer.
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

/// One token row's attention.
struct LatentAttentionRow {
  const float*
      q;  // [heads, entry_width]: absorbed query (latent), then rotated rope part, then zeros
  const float* const* keys;  // [num_keys] entries of entry_width floats: latent, rope key, zeros
  size_t num_keys;           // >= 1
  float* out;                // [heads, latent]: sum of p * latent
};

/// out[h] = sum_t softmax_t(scale * q[h]·key_t) * key_t[0:latent]. entry_width is a multiple of
/// kAttentionPad. One parallel region over (row, block of heads).
void LatentAttention(std::span<const LatentAttentionRow> rows, size_t heads, size_t latent,
                     size_t entry_width, float scale, OpContext& context);

/// Keys of the indexer lie transposed in groups of this many tokens: [index_dim][kIndexGroup].
inline constexpr size_t kIndexGroup = 16;

/// scores[t] = sum_h w[h] * relu(scale * q[h]·k_t) for the kIndexGroup keys of one group
/// (models.md 1.6). q: [heads, dim], w: [heads], group: [dim][kIndexGroup], scores: [kIndexGroup].
void IndexScores(const float* q, const float* w, size_t heads, size_t dim, float scale,
                 const float* group, float* scores);

/// Writes the positions of the k largest scores, ascending, to `selected`; ties go to the lower
/// position, NaN last. scratch: [scores.size()]. Returns the number written, min(k, scores.size()).
size_t SelectTopPositions(std::span<const float> scores, size_t k, std::span<uint64_t> scratch,
                          std::span<uint32_t> selected);

}  // namespace carpool
