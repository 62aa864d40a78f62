#include "ops/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/activation_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace carpool {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

/// scores[h * score_stride + t] = scale * q[h]·keys[t] for kHeads heads, keys `offset` floats into
/// their entries. Two accumulators per head hide the latency.
template <size_t kHeads>
HWY_INLINE void Scores(const float* HWY_RESTRICT q, const float* const* keys, size_t offset,
                       size_t num_keys, size_t width, float scale, float* HWY_RESTRICT scores,
                       size_t score_stride) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t t = 0; t < num_keys; ++t) {
    const float* HWY_RESTRICT key = keys[t] + offset;
    V even[kHeads], odd[kHeads];
    for (size_t h = 0; h < kHeads; ++h) even[h] = odd[h] = hn::Zero(d);
    size_t i = 0;
    for (; i + 2 * lanes <= width; i += 2 * lanes) {
      const V k0 = hn::LoadU(d, key + i);
      const V k1 = hn::LoadU(d, key + i + lanes);
      for (size_t h = 0; h < kHeads; ++h) {
        even[h] = hn::MulAdd(hn::LoadU(d, q + h * width + i), k0, even[h]);
        odd[h] = hn::MulAdd(hn::LoadU(d, q + h * width + i + lanes), k1, odd[h]);
      }
    }
    for (; i < width; i += lanes) {
      const V k0 = hn::LoadU(d, key + i);
      for (size_t h = 0; h < kHeads; ++h)
        even[h] = hn::MulAdd(hn::LoadU(d, q + h * width + i), k0, even[h]);
    }
    for (size_t h = 0; h < kHeads; ++h) {
      scores[h * score_stride + t] =
          scale * hn::GetLane(hn::SumOfLanes(d, hn::Add(even[h], odd[h])));
    }
  }
}

/// Turns n scores into exp(score - max), in place, and returns 1 / their sum. `sink` (null: none)
/// is one more score of the maximum and the sum. `scores` has room for whole vectors.
HWY_INLINE float ExpScores(float* HWY_RESTRICT scores, size_t n, const float* sink) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t t = n; t % lanes != 0; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  V max = hn::LoadU(d, scores);
  for (size_t t = lanes; t < n; t += lanes) max = hn::Max(max, hn::LoadU(d, scores + t));
  max = hn::MaxOfLanes(d, max);
  if (sink != nullptr) max = hn::Max(max, hn::Set(d, *sink));
  V sum = hn::Zero(d);
  for (size_t t = 0; t < n; t += lanes) {
    const V x = hn::Sub(hn::LoadU(d, scores + t), max);
    const V p = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Exp(d, x));
    hn::StoreU(p, d, scores + t);
    sum = hn::Add(sum, p);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (sink != nullptr) total += hn::GetLane(hn::Exp(d, hn::Sub(hn::Set(d, *sink), max)));
  return 1.0f / total;
}

/// acc[h * acc_stride + i] = sum_t p[h][t] * keys[t][offset + i] * inv[h], i < width (a multiple of
/// kAttentionPad).
template <size_t kHeads>
HWY_INLINE void WeightedSum(const float* HWY_RESTRICT p, size_t p_stride, const float* const* keys,
                            size_t offset, size_t num_keys, size_t width, const float* inv,
                            float* HWY_RESTRICT acc, size_t acc_stride) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < width; i += lanes) {
    V sum[kHeads];
    for (size_t h = 0; h < kHeads; ++h) sum[h] = hn::Zero(d);
    for (size_t t = 0; t < num_keys; ++t) {
      const V k = hn::LoadU(d, keys[t] + offset + i);
      for (size_t h = 0; h < kHeads; ++h)
        sum[h] = hn::MulAdd(hn::Set(d, p[h * p_stride + t]), k, sum[h]);
    }
    for (size_t h = 0; h < kHeads; ++h)
      hn::StoreU(hn::Mul(sum[h], hn::Set(d, inv[h])), d, acc + h * acc_stride + i);
  }
}

/// Heads [first, first + kHeads), which share a key head.
template <size_t kHeads>
void Heads(const AttentionRow& row, const AttentionHeads& a, size_t first, float* scores,
           size_t score_stride, float* acc) {
  const size_t key = first / a.heads_per_kv * a.kv_stride;
  const size_t acc_width = RoundUp(a.value_width, kAttentionPad);
  float inv[kHeads];
  Scores<kHeads>(row.q + first * a.key_width, row.keys, key, row.num_keys, a.key_width, a.scale,
                 scores, score_stride);
  for (size_t h = 0; h < kHeads; ++h) {
    inv[h] = ExpScores(scores + h * score_stride, row.num_keys,
                       a.sinks == nullptr ? nullptr : a.sinks + first + h);
  }
  WeightedSum<kHeads>(scores, score_stride, row.keys, key + a.value_offset, row.num_keys, acc_width,
                      inv, acc, acc_width);
  for (size_t h = 0; h < kHeads; ++h) {
    std::copy(acc + h * acc_width, acc + h * acc_width + a.value_width,
              row.out + (first + h) * a.value_width);
  }
}

void HeadBlock(const AttentionRow& row, const AttentionHeads& a, size_t first, size_t count,
               float* scores, size_t score_stride, float* acc) {
  // A head's arithmetic is the same in every block size, so the block may depend on what is left.
  const size_t end = first + count;
  if (count == 4) return Heads<4>(row, a, first, scores, score_stride, acc);
  for (; first + 2 <= end; first += 2) Heads<2>(row, a, first, scores, score_stride, acc);
  if (first < end) Heads<1>(row, a, first, scores, score_stride, acc);
}

void IndexScoresGroup(const float* HWY_RESTRICT q, const float* HWY_RESTRICT w, size_t heads,
                      size_t dim, float scale, const float* HWY_RESTRICT group,
                      float* HWY_RESTRICT scores) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V zero = hn::Zero(d);
  const V scales = hn::Set(d, scale);
  for (size_t t = 0; t < kIndexGroup; t += lanes) {
    V total = zero;
    size_t h = 0;
    for (; h + 4 <= heads; h += 4) {
      V dot[4] = {zero, zero, zero, zero};
      for (size_t i = 0; i < dim; ++i) {
        const V k = hn::LoadU(d, group + i * kIndexGroup + t);
        for (size_t j = 0; j < 4; ++j)
          dot[j] = hn::MulAdd(hn::Set(d, q[(h + j) * dim + i]), k, dot[j]);
      }
      for (size_t j = 0; j < 4; ++j) {
        total = hn::MulAdd(hn::Set(d, w[h + j]), hn::Max(hn::Mul(dot[j], scales), zero), total);
      }
    }
    for (; h < heads; ++h) {
      V dot = zero;
      for (size_t i = 0; i < dim; ++i) {
        dot =
            hn::MulAdd(hn::Set(d, q[h * dim + i]), hn::LoadU(d, group + i * kIndexGroup + t), dot);
      }
      total = hn::MulAdd(hn::Set(d, w[h]), hn::Max(hn::Mul(dot, scales), zero), total);
    }
    hn::StoreU(total, d, scores + t);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace carpool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace carpool {

HWY_EXPORT(HeadBlock);
HWY_EXPORT(IndexScoresGroup);

void Attend(std::span<const AttentionRow> rows, const AttentionHeads& a, OpContext& context) {
  constexpr size_t kBlock = 4;
  CARPOOL_CHECK_EQ(a.key_width % kAttentionPad, size_t{0});
  CARPOOL_CHECK_EQ(a.heads % a.heads_per_kv, size_t{0});
  size_t max_keys = 0, keys = 0;
  for (const auto& row : rows) {
    max_keys = std::max(max_keys, row.num_keys);
    keys += row.num_keys;
  }
  ArenaScope scope(context.arena);
  const size_t score_stride = RoundUp(max_keys, kAttentionPad);
  const size_t acc_width = RoundUp(a.value_width, kAttentionPad);
  const size_t per_worker = kBlock * (score_stride + acc_width);
  auto scratch = context.arena.Matrix<float>(context.pool.num_threads(), per_worker);
  // A block's heads share a key head.
  const size_t per_kv = DivCeil(a.heads_per_kv, kBlock);
  const size_t blocks = a.heads / a.heads_per_kv * per_kv;
  const auto head_block = HWY_DYNAMIC_DISPATCH(HeadBlock);
  // Keys are read twice (scores, sums) by every block of heads.
  const bool fork = WorthForking(2 * blocks * keys * a.key_width * sizeof(float), 1);
  RunTasks(context.pool, rows.size() * blocks, fork, [&](size_t task, size_t worker) {
    const size_t block = task % blocks, within = block % per_kv * kBlock;
    const size_t first = block / per_kv * a.heads_per_kv + within;
    float* scores = scratch.Row(worker);
    head_block(rows[task / blocks], a, first, std::min(kBlock, a.heads_per_kv - within), scores,
               score_stride, scores + kBlock * score_stride);
  });
}

void IndexScores(const float* q, const float* w, size_t heads, size_t dim, float scale,
                 const float* group, float* scores) {
  HWY_DYNAMIC_DISPATCH(IndexScoresGroup)(q, w, heads, dim, scale, group, scores);
}

size_t SelectTopPositions(std::span<const float> scores, size_t k, std::span<uint64_t> scratch,
                          std::span<uint32_t> selected) {
  const size_t n = scores.size();
  k = std::min(k, n);
  // One integer per position whose descending order is (score descending, position ascending).
  for (size_t i = 0; i < n; ++i) {
    uint32_t key = 0;
    if (!std::isnan(scores[i])) {
      const auto bits = std::bit_cast<uint32_t>(scores[i] + 0.0f);  // -0 becomes +0
      key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    }
    scratch[i] = (static_cast<uint64_t>(key) << 32) | (0xFFFFFFFFu - static_cast<uint32_t>(i));
  }
  if (k < n) {
    std::nth_element(scratch.begin(), scratch.begin() + static_cast<ptrdiff_t>(k),
                     scratch.begin() + static_cast<ptrdiff_t>(n), std::greater<uint64_t>());
  }
  for (size_t i = 0; i < k; ++i) selected[i] = 0xFFFFFFFFu - static_cast<uint32_t>(scratch[i]);
  std::sort(selected.begin(), selected.begin() + static_cast<ptrdiff_t>(k));
  return k;
}

}  // namespace carpool
#endif  // HWY_ONCE
