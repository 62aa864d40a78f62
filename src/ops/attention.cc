// Flash-like, without the online softmax: keys are walked in tiles that stay in L1 or L2 while a
// group of heads meets them, once for the scores and once for the weighted sum. Tiles and groups
// are a matter of speed only: every score is one chain over the entry's width, every output one
// chain over ascending keys.
#include "ops/attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "hwy/cache_control.h"
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

constexpr size_t kLanes = hn::MaxLanes(D());
// A block of kHeadsAtOnce x kKeysAtOnce scores has as many sums as a vector has lanes, so that they
// are added up together: with AVX-512 16 accumulators, 4 keys and a query in 32 registers.
constexpr size_t kHeadsAtOnce = 4;
constexpr size_t kKeysAtOnce = kLanes >= 4 ? kLanes / 4 : 1;
// A tile of keys of GLM-5's size takes 37 KB: it stays in L1 while a group of heads meets it.
constexpr size_t kKeyTile = 16;
constexpr size_t kSumHeads = kLanes >= 16 ? 8 : 4;

/// Lane v of the result is the sum of acc[v]'s lanes: neighbours are added until one vector is
/// left.
HWY_INLINE V SumsOfLanes(V* HWY_RESTRICT acc) {
  const D d;
  if constexpr (kLanes >= 4) {
    for (size_t n = kLanes; n > 1; n /= 2) {
      for (size_t v = 0; v < n / 2; ++v) {
        const V low = acc[2 * v], high = acc[2 * v + 1];
        acc[v] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
      }
    }
  }
  return acc[0];
}

/// scores[h * score_stride + t] = scale * q[h]·keys[t], h < num_heads, t in [first, last), keys
/// `offset` floats into their entries.
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, size_t num_heads, const float* const* keys,
                          size_t offset, size_t first, size_t last, size_t width, float scale,
                          float* HWY_RESTRICT scores, size_t score_stride) {
  const D d;
  constexpr size_t kBlock = kHeadsAtOnce * kKeysAtOnce;
  for (size_t h0 = 0; h0 < num_heads; h0 += kHeadsAtOnce) {
    for (size_t t0 = first; t0 < last; t0 += kKeysAtOnce) {
      // What sticks out repeats the last head or key and is dropped.
      const float* queries[kHeadsAtOnce];
      const float* key[kKeysAtOnce];
      for (size_t h = 0; h < kHeadsAtOnce; ++h)
        queries[h] = q + HWY_MIN(h0 + h, num_heads - 1) * width;
      for (size_t t = 0; t < kKeysAtOnce; ++t) key[t] = keys[HWY_MIN(t0 + t, last - 1)] + offset;
      V acc[kBlock];
      for (V& a : acc) a = hn::Zero(d);
      for (size_t i = 0; i < width; i += kLanes) {
        V k[kKeysAtOnce];
        for (size_t t = 0; t < kKeysAtOnce; ++t) k[t] = hn::LoadU(d, key[t] + i);
        for (size_t h = 0; h < kHeadsAtOnce; ++h) {
          const V x = hn::LoadU(d, queries[h] + i);
          for (size_t t = 0; t < kKeysAtOnce; ++t)
            acc[h * kKeysAtOnce + t] = hn::MulAdd(x, k[t], acc[h * kKeysAtOnce + t]);
        }
      }
      float sums[HWY_MAX(kBlock, kLanes)];
      if constexpr (kLanes == kBlock) {
        hn::StoreU(hn::Mul(SumsOfLanes(acc), hn::Set(d, scale)), d, sums);
      } else {
        for (size_t v = 0; v < kBlock; ++v)
          sums[v] = scale * hn::GetLane(hn::SumOfLanes(d, acc[v]));
      }
      const size_t heads = HWY_MIN(kHeadsAtOnce, num_heads - h0);
      const size_t n = HWY_MIN(kKeysAtOnce, last - t0);
      for (size_t h = 0; h < heads; ++h) {
        for (size_t t = 0; t < n; ++t)
          scores[(h0 + h) * score_stride + t0 + t] = sums[h * kKeysAtOnce + t];
      }
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

/// acc[h][i...] += sum over keys [first, last) of p[h][t] * keys[t][i...] for kVecs vectors and
/// kSumHeads heads.
template <size_t kVecs>
HWY_INLINE void SumBlock(const float* const (&p)[kSumHeads], const float* const* keys,
                         size_t offset, size_t first, size_t last, size_t i,
                         float* const (&acc)[kSumHeads]) {
  const D d;
  V sum[kSumHeads][kVecs];
  for (size_t h = 0; h < kSumHeads; ++h) {
    for (size_t v = 0; v < kVecs; ++v) sum[h][v] = hn::LoadU(d, acc[h] + i + v * kLanes);
  }
  for (size_t t = first; t < last; ++t) {
    V k[kVecs];
    for (size_t v = 0; v < kVecs; ++v) k[v] = hn::LoadU(d, keys[t] + offset + i + v * kLanes);
    for (size_t h = 0; h < kSumHeads; ++h) {
      const V weight = hn::Set(d, p[h][t]);
      for (size_t v = 0; v < kVecs; ++v) sum[h][v] = hn::MulAdd(weight, k[v], sum[h][v]);
    }
  }
  for (size_t h = 0; h < kSumHeads; ++h) {
    for (size_t v = 0; v < kVecs; ++v) hn::StoreU(sum[h][v], d, acc[h] + i + v * kLanes);
  }
}

/// The same over the whole width (a multiple of kAttentionPad) for any number of heads.
HWY_INLINE void SumTile(const float* HWY_RESTRICT scores, size_t score_stride, size_t num_heads,
                        const float* const* keys, size_t offset, size_t first, size_t last,
                        size_t width, float* HWY_RESTRICT acc) {
  for (size_t h0 = 0; h0 < num_heads; h0 += kSumHeads) {
    // Heads that stick out repeat the last one: the same values are stored again.
    const float* p[kSumHeads];
    float* out[kSumHeads];
    for (size_t h = 0; h < kSumHeads; ++h) {
      const size_t head = HWY_MIN(h0 + h, num_heads - 1);
      p[h] = scores + head * score_stride;
      out[h] = acc + head * width;
    }
    size_t i = 0;
    for (; i + 2 * kLanes <= width; i += 2 * kLanes)
      SumBlock<2>(p, keys, offset, first, last, i, out);
    for (; i < width; i += kLanes) SumBlock<1>(p, keys, offset, first, last, i, out);
  }
}

/// Asks for numbers [offset, offset + width) of the keys of a tile: those of a sparse row lie
/// anywhere.
HWY_INLINE void PrefetchTile(const AttentionRow& row, size_t first, size_t offset, size_t width) {
  for (size_t t = first; t < HWY_MIN(first + kKeyTile, row.num_keys); ++t) {
    for (size_t i = 0; i < width; i += kAttentionPad) hwy::Prefetch(row.keys[t] + offset + i);
  }
}

/// Heads [first, first + count), which share a key head.
void HeadGroup(const AttentionRow& row, const AttentionHeads& a, size_t first, size_t count,
               float* scores, size_t score_stride, float* acc) {
  const size_t key = first / a.heads_per_kv * a.kv_stride, value = key + a.value_offset;
  const size_t acc_width = RoundUp(a.value_width, kAttentionPad), n = row.num_keys;
  for (size_t t = 0; t < n; t += kKeyTile) {
    PrefetchTile(row, t + kKeyTile, key, a.key_width);
    ScoreTile(row.q + first * a.key_width, count, row.keys, key, t, HWY_MIN(t + kKeyTile, n),
              a.key_width, a.scale, scores, score_stride);
  }
  std::fill(acc, acc + count * acc_width, 0.0f);
  float* inverse = acc + count * acc_width;
  for (size_t h = 0; h < count; ++h) {
    inverse[h] =
        ExpScores(scores + h * score_stride, n, a.sinks == nullptr ? nullptr : a.sinks + first + h);
  }
  for (size_t t = 0; t < n; t += kKeyTile) {
    PrefetchTile(row, t + kKeyTile, value, acc_width);
    SumTile(scores, score_stride, count, row.keys, value, t, HWY_MIN(t + kKeyTile, n), acc_width,
            acc);
  }
  for (size_t h = 0; h < count; ++h) {
    float* out = row.out + (first + h) * a.value_width;
    for (size_t i = 0; i < a.value_width; ++i) out[i] = acc[h * acc_width + i] * inverse[h];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace carpool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace carpool {

HWY_EXPORT(HeadGroup);

namespace {

/// Heads of one task: many, so that a key is loaded rarely, yet enough tasks for the threads and
/// scores that fit into L2.
size_t GroupHeads(const AttentionHeads& a, size_t rows, size_t score_stride, size_t threads) {
  constexpr size_t kMostHeads = 32, kScoreBytes = size_t{1} << 20;
  const size_t for_threads = a.heads * rows / (2 * threads);
  const size_t for_cache = kScoreBytes / (score_stride * sizeof(float));
  const size_t group = std::min({kMostHeads, for_threads, for_cache}) / 8 * 8;
  return std::min(a.heads_per_kv, std::max<size_t>(8, group));
}

}  // namespace

void Attend(std::span<const AttentionRow> rows, const AttentionHeads& a, OpContext& context) {
  CARPOOL_CHECK_EQ(a.key_width % kAttentionPad, size_t{0});
  CARPOOL_CHECK_EQ(a.heads % a.heads_per_kv, size_t{0});
  if (rows.empty()) return;
  size_t max_keys = 0, keys = 0;
  for (const auto& row : rows) {
    max_keys = std::max(max_keys, row.num_keys);
    keys += row.num_keys;
  }
  ArenaScope scope(context.arena);
  const size_t score_stride = RoundUp(max_keys, kAttentionPad);
  const size_t threads = context.pool.num_threads();
  const size_t group = GroupHeads(a, rows.size(), score_stride, threads);
  const size_t per_kv = DivCeil(a.heads_per_kv, group);
  const size_t groups = a.heads / a.heads_per_kv * per_kv;
  const size_t acc_width = RoundUp(a.value_width, kAttentionPad);
  auto scratch = context.arena.Matrix<float>(
      threads, group * (score_stride + acc_width) + RoundUp(group, kAttentionPad));
  const auto head_group = HWY_DYNAMIC_DISPATCH(HeadGroup);
  // A multiply-add per head and number of a key, for scores and sums, at some 16 a nanosecond.
  const bool fork = WorthForking(a.heads * keys * a.key_width / 2, 1);
  RunTasks(context.pool, rows.size() * groups, fork, [&](size_t task, size_t worker) {
    const size_t block = task % groups, within = block % per_kv * group;
    const size_t first = block / per_kv * a.heads_per_kv + within;
    float* scores = scratch.Row(worker);
    head_group(rows[task / groups], a, first, std::min(group, a.heads_per_kv - within), scores,
               score_stride, scores + group * score_stride);
  });
}

}  // namespace carpool
#endif  // HWY_ONCE
