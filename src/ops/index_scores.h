// The DSA indexer's arithmetic: scores of every cached key for one row, and the best of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace carpool {

/// Keys of the indexer lie transposed in groups of this many tokens: [index_dim][kIndexGroup].
inline constexpr size_t kIndexGroup = 16;

/// scores[g * kIndexGroup + t] = sum_h w[h] * relu(scale * q[h]·k_t) for the kIndexGroup keys of
/// every group g (models.md 1.6). q: [heads, dim], w: [heads], groups: [dim][kIndexGroup] each,
/// scores: [groups * kIndexGroup]. A key's score has the same bits whatever groups go with it.
void IndexScores(const float* q, const float* w, size_t heads, size_t dim, float scale,
                 std::span<const float* const> groups, float* scores);

/// Writes the positions of the k largest scores, ascending, to `selected`; ties go to the lower
/// position, NaN last. scratch: [scores.size()]. Returns the number written, min(k, scores.size()).
size_t SelectTopPositions(std::span<const float> scores, size_t k, std::span<uint64_t> scratch,
                          std::span<uint32_t> selected);

}  // namespace carpool
