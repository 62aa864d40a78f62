#include "ops/index_scores.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index_scores.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace carpool {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr size_t kLanes = hn::MaxLanes(D());
// kHeads x kVecs chains at once: enough to hide the latency, few enough for the registers (AVX-512:
// 8 heads x 32 keys in 16 of 32; AVX2: 4 heads x 16 keys in 8 of 16).
constexpr size_t kVecsPerGroup = kIndexGroup / kLanes;
constexpr size_t kGroupsAtOnce = kLanes >= 16 ? 2 : 1;
constexpr size_t kHeadsAtOnce = kLanes >= 16 ? 8 : 4;
constexpr size_t kVecs = kLanes >= 16 ? 1 : kLanes >= 8 ? 2 : 4;  // of a group at once

/// Adds heads [h, h + kHeads) of kGroups groups, vectors [v0, v0 + kVecs), to total.
template <size_t kHeads, size_t kGroups>
HWY_INLINE void AddHeads(const float* HWY_RESTRICT q, const float* HWY_RESTRICT w, size_t dim,
                         float scale, const float* const* groups, size_t lane,
                         V (&total)[kGroups * kVecs]) {
  const D d;
  V dot[kHeads][kGroups * kVecs];
  for (auto& row : dot) {
    for (V& x : row) x = hn::Zero(d);
  }
  for (size_t i = 0; i < dim; ++i) {
    V k[kGroups * kVecs];
    for (size_t g = 0; g < kGroups; ++g) {
      for (size_t v = 0; v < kVecs; ++v)
        k[g * kVecs + v] = hn::LoadU(d, groups[g] + i * kIndexGroup + lane + v * kLanes);
    }
    for (size_t h = 0; h < kHeads; ++h) {
      const V x = hn::Set(d, q[h * dim + i]);
      for (size_t v = 0; v < kGroups * kVecs; ++v) dot[h][v] = hn::MulAdd(x, k[v], dot[h][v]);
    }
  }
  const V scales = hn::Set(d, scale);
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t v = 0; v < kGroups * kVecs; ++v) {
      const V relu = hn::Max(hn::Mul(dot[h][v], scales), hn::Zero(d));
      total[v] = hn::MulAdd(hn::Set(d, w[h]), relu, total[v]);
    }
  }
}

template <size_t kGroups>
HWY_INLINE void ScoreGroups(const float* q, const float* w, size_t heads, size_t dim, float scale,
                            const float* const* groups, float* HWY_RESTRICT scores) {
  const D d;
  for (size_t v0 = 0; v0 < kVecsPerGroup; v0 += kVecs) {
    V total[kGroups * kVecs];
    for (V& x : total) x = hn::Zero(d);
    size_t h = 0;
    for (; h + kHeadsAtOnce <= heads; h += kHeadsAtOnce)
      AddHeads<kHeadsAtOnce, kGroups>(q + h * dim, w + h, dim, scale, groups, v0 * kLanes, total);
    if constexpr (kHeadsAtOnce > 4) {
      for (; h + 4 <= heads; h += 4)
        AddHeads<4, kGroups>(q + h * dim, w + h, dim, scale, groups, v0 * kLanes, total);
    }
    for (; h < heads; ++h)
      AddHeads<1, kGroups>(q + h * dim, w + h, dim, scale, groups, v0 * kLanes, total);
    for (size_t g = 0; g < kGroups; ++g) {
      for (size_t v = 0; v < kVecs; ++v)
        hn::StoreU(total[g * kVecs + v], d, scores + g * kIndexGroup + (v0 + v) * kLanes);
    }
  }
}

void ScoreAll(const float* q, const float* w, size_t heads, size_t dim, float scale,
              const float* const* groups, size_t num_groups, float* scores) {
  size_t g = 0;
  for (; g + kGroupsAtOnce <= num_groups; g += kGroupsAtOnce)
    ScoreGroups<kGroupsAtOnce>(q, w, heads, dim, scale, groups + g, scores + g * kIndexGroup);
  for (; g < num_groups; ++g)
    ScoreGroups<1>(q, w, heads, dim, scale, groups + g, scores + g * kIndexGroup);
}

}  // namespace HWY_NAMESPACE
}  // namespace carpool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace carpool {

HWY_EXPORT(ScoreAll);

void IndexScores(const float* q, const float* w, size_t heads, size_t dim, float scale,
                 std::span<const float* const> groups, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreAll)(q, w, heads, dim, scale, groups.data(), groups.size(), scores);
}

namespace {

/// An integer with the order of the scores; NaN is the least, -0 equals +0.
uint32_t OrderedBits(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Up to here ordering all of them costs less than a histogram.
constexpr size_t kHistogramFrom = 512;

}  // namespace

size_t SelectTopPositions(std::span<const float> scores, size_t k, std::span<uint64_t> scratch,
                          std::span<uint32_t> selected) {
  const size_t n = scores.size();
  k = std::min(k, n);
  if (k == 0) return 0;
  // One integer per position whose descending order is (score descending, position ascending).
  const auto rank = [&](size_t i) {
    return (static_cast<uint64_t>(OrderedBits(scores[i])) << 32) |
           (0xFFFFFFFFu - static_cast<uint32_t>(i));
  };
  size_t above = 0, candidates = 0;
  if (n <= kHistogramFrom) {
    for (; candidates < n; ++candidates) scratch[candidates] = rank(candidates);
  } else {
    // A histogram of the leading bits says in which bucket the k-th best lies, so that only that
    // bucket needs to be ordered.
    constexpr uint32_t kShift = 20;
    uint32_t histogram[1u << (32 - kShift)] = {};
    for (size_t i = 0; i < n; ++i) ++histogram[OrderedBits(scores[i]) >> kShift];
    uint32_t bucket = (1u << (32 - kShift)) - 1;
    while (above + histogram[bucket] < k) above += histogram[bucket--];
    for (size_t i = 0; candidates < histogram[bucket]; ++i) {
      scratch[candidates] = rank(i);
      candidates += OrderedBits(scores[i]) >> kShift == bucket ? 1 : 0;
    }
  }
  const auto last = scratch.begin() + static_cast<ptrdiff_t>(k - above - 1);
  std::nth_element(scratch.begin(), last, scratch.begin() + static_cast<ptrdiff_t>(candidates),
                   std::greater<uint64_t>());
  const uint64_t least = *last;
  size_t count = 0;
  for (size_t i = 0; count < k; ++i) {
    selected[count] = static_cast<uint32_t>(i);
    count += rank(i) >= least ? 1 : 0;
  }
  return k;
}

}  // namespace carpool
#endif  // HWY_ONCE
