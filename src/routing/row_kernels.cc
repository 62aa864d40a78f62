#include "routing/row_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/aligned.h"
#include "routing/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "routing/row_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace carpool {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

constexpr float kInf = __builtin_inff();

HWY_INLINE VF Const(float value) { return hn::Set(DF(), value); }
HWY_INLINE VF MulPlus(VF a, VF b, VF c) { return hn::Add(hn::Mul(a, b), c); }  // never fused

/// e^x for x <= 0, down to 0 through the denormals; NaN stays NaN. Range reduction by ln 2 in two
/// parts, then a polynomial of degree 6 (Cephes).
HWY_INLINE VF ExpNonPositive(VF x) {
  const DF d;
  const DI di;
  const VF clamped = hn::Max(x, Const(-104.0f));
  // Adding and subtracting 1.5 * 2^23 rounds to a whole number without a rounding instruction.
  const VF magic = Const(12582912.0f);
  const VF n = hn::Sub(MulPlus(clamped, Const(1.44269504088896341f), magic), magic);
  VF r = hn::Sub(clamped, hn::Mul(n, Const(0.693359375f)));
  r = hn::Sub(r, hn::Mul(n, Const(-2.12194440e-4f)));
  VF p = Const(1.9875691500e-4f);
  p = MulPlus(p, r, Const(1.3981999507e-3f));
  p = MulPlus(p, r, Const(8.3334519073e-3f));
  p = MulPlus(p, r, Const(4.1665795894e-2f));
  p = MulPlus(p, r, Const(1.6666665459e-1f));
  p = MulPlus(p, r, Const(5.0000001201e-1f));
  p = hn::Add(MulPlus(p, hn::Mul(r, r), r), Const(1.0f));
  // 2^n in two steps: the first stays normal, the second rounds once into the denormals.
  const auto whole = hn::ConvertTo(di, n);
  const auto first = hn::Max(whole, hn::Set(di, -126));
  const auto second = hn::Sub(whole, first);
  const auto bias = hn::Set(di, 127);
  const VF scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const VF scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(second, bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(p, scale1), scale2));
}

HWY_INLINE VF SigmoidOf(VF x) {
  const VF e = ExpNonPositive(hn::Neg(hn::Abs(x)));
  const VF one = Const(1.0f);
  const VF top = hn::IfThenElse(hn::Ge(x, hn::Zero(DF())), one, e);
  return hn::Div(top, hn::Add(one, e));
}

/// sqrt(ln(1 + e^x)); ln(1 + t) = 2 atanh(t / (2 + t)) by its series, t in [0, 1].
HWY_INLINE VF SqrtSoftplusOf(VF x) {
  const VF t = ExpNonPositive(hn::Neg(hn::Abs(x)));
  const VF s = hn::Div(t, hn::Add(t, Const(2.0f)));
  const VF z = hn::Mul(s, s);
  VF p = Const(1.0f / 17);
  p = MulPlus(p, z, Const(1.0f / 15));
  p = MulPlus(p, z, Const(1.0f / 13));
  p = MulPlus(p, z, Const(1.0f / 11));
  p = MulPlus(p, z, Const(1.0f / 9));
  p = MulPlus(p, z, Const(1.0f / 7));
  p = MulPlus(p, z, Const(1.0f / 5));
  p = MulPlus(p, z, Const(1.0f / 3));
  p = MulPlus(p, z, Const(1.0f));
  const VF log = hn::Mul(hn::Add(s, s), p);
  const VF sum = hn::Add(hn::Max(x, hn::Zero(DF())), log);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Sqrt(sum));
}

/// x[padded], NaN beyond n. A NaN stays NaN and adds nothing; +inf logits share the whole mass.
HWY_INLINE void SoftmaxInPlace(float* HWY_RESTRICT x, size_t padded) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF max = Const(-kInf);
  for (size_t i = 0; i < padded; i += lanes) {
    const VF v = hn::Load(d, x + i);
    max = hn::Max(max, hn::IfThenElse(hn::IsNaN(v), Const(-kInf), v));
  }
  max = hn::MaxOfLanes(d, max);
  HWY_ALIGN float sums[16] = {};
  for (size_t i = 0; i < padded; i += 16) {
    for (size_t l = 0; l < 16; l += lanes) {
      const VF v = hn::Load(d, x + i + l);
      const VF e = ExpNonPositive(hn::IfThenElse(hn::Eq(v, max), hn::Zero(d), hn::Sub(v, max)));
      hn::Store(e, d, x + i + l);
      hn::Store(hn::Add(hn::Load(d, sums + l), hn::IfThenElse(hn::IsNaN(e), hn::Zero(d), e)), d,
                sums + l);
    }
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  const VF sum = Const(sums[0]);
  for (size_t i = 0; i < padded; i += lanes) hn::Store(hn::Div(hn::Load(d, x + i), sum), d, x + i);
}

/// Rank keys of c; NaN -> kNanKey.
HWY_INLINE VU KeysOf(VF c) {
  const DU du;
  const DI di;
  const VF plus_zero = hn::Add(c, hn::Zero(DF()));  // -0 becomes +0
  const auto negative = hn::BitCast(du, hn::ShiftRight<31>(hn::BitCast(di, plus_zero)));
  const VU flip = hn::Or(negative, hn::Set(du, 0x80000000u));
  const VU key = hn::Xor(hn::BitCast(du, plus_zero), flip);
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(c)), hn::Set(du, kNanKey), key);
}

template <typename Activate>
HWY_INLINE size_t FinishRow(const GateSpec& gate, const float* bias, const RowScores& out,
                            Activate activate) {
  const DF d;
  const DU du;
  const size_t lanes = hn::Lanes(d), n = gate.num_experts, padded = RoundUp(n, kRowBlock);
  const bool biased = bias != nullptr && gate.choice == GateChoice::kScorePlusBias;
  const bool by_logit = gate.choice == GateChoice::kLogit;
  HWY_ALIGN float tail[16] = {};
  size_t nans = 0;
  for (size_t i = 0; i < padded; i += lanes) {
    const VF score = activate(hn::Load(d, out.score + i));
    VF choice = by_logit ? hn::Load(d, out.logit + i) : score;
    if (biased) {
      const float* b = bias + i;
      if (i + lanes > n) {
        if (i < n) std::memcpy(tail, b, (n - i) * sizeof(float));
        b = tail;
      }
      choice = hn::Add(choice, hn::LoadU(d, b));
    }
    hn::Store(score, d, out.score + i);
    hn::Store(choice, d, out.choice + i);
    hn::Store(KeysOf(choice), du, out.key + i);
    nans += hn::CountTrue(d, hn::IsNaN(choice));
  }
  for (size_t e = n; e < padded; ++e) {
    nans -= out.choice[e] != out.choice[e];
    out.logit[e] = out.score[e] = out.choice[e] = 0.0f;
    out.key[e] = kIneligibleKey;
  }
  return nans;
}

size_t Score(const GateSpec& gate, const float* logits, const float* bias, const RowScores& out) {
  const size_t n = gate.num_experts, padded = RoundUp(n, kRowBlock);
  std::memcpy(out.logit, logits, n * sizeof(float));
  std::memcpy(out.score, logits, n * sizeof(float));
  if (bias != nullptr && gate.choice == GateChoice::kActivationOfBiased) {
    for (size_t e = 0; e < n; ++e) out.score[e] += bias[e];
  }
  std::fill(out.logit + n, out.logit + padded, __builtin_nanf(""));
  std::fill(out.score + n, out.score + padded, __builtin_nanf(""));
  switch (gate.activation) {
    case GateActivation::kSigmoid:
      return FinishRow(gate, bias, out, [](VF x) HWY_ATTR { return SigmoidOf(x); });
    case GateActivation::kSqrtSoftplus:
      return FinishRow(gate, bias, out, [](VF x) HWY_ATTR { return SqrtSoftplusOf(x); });
    case GateActivation::kSoftmax:
      SoftmaxInPlace(out.score, padded);
      break;
    case GateActivation::kIdentity:
    case GateActivation::kSigmoidTanh:
      break;
  }
  return FinishRow(gate, bias, out, [](VF x) HWY_ATTR { return x; });
}

// ---- top-k -------------------------------------------------------------------------------------

constexpr size_t kMaxRow = 2048;   // larger rows take the scalar path
constexpr size_t kMaxRanked = 64;  // candidates ranked by counting; more are sorted

/// Bits of the lanes of keys[i, i + 16) that exceed `bound`.
HWY_INLINE uint32_t Above(const uint32_t* keys, const uint32_t* mask, size_t i, uint32_t bound) {
  const DU d;
  const size_t lanes = hn::Lanes(d);
  const VU limit = hn::Set(d, bound);
  uint32_t bits = 0;
  for (size_t l = 0; l < 16; l += lanes) {
    VU v = hn::LoadU(d, keys + i + l);
    if (mask != nullptr) v = hn::And(v, hn::LoadU(d, mask + i + l));
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(d, hn::Gt(v, limit), bytes);
    uint32_t part = 0;
    std::memcpy(&part, bytes, 2);
    bits |= part << l;
  }
  return bits;
}

/// A key that at least k eligible experts reach, as high as the maxima of a few interleaved buckets
/// tell; else 1.
HWY_INLINE uint32_t LowerBound(const uint32_t* keys, const uint32_t* mask, size_t n, size_t k) {
  const DU d;
  const size_t lanes = hn::Lanes(d);
  const size_t buckets = RoundUp(2 * k, 16);
  if (buckets * 2 > n) return 1;
  HWY_ALIGN uint32_t best[kMaxRow / 2];
  for (size_t b = 0; b < buckets; b += lanes) {
    VU max = hn::Zero(d);
    for (size_t i = b; i < n; i += buckets) {
      VU v = hn::LoadU(d, keys + i);
      if (mask != nullptr) v = hn::And(v, hn::LoadU(d, mask + i));
      max = hn::Max(max, v);
    }
    hn::Store(max, d, best + b);
  }
  // The k-th largest maximum: the least one that fewer than k exceed.
  uint32_t bound = ~0u;
  for (size_t i = 0; i < buckets; ++i) {
    const VU mine = hn::Set(d, best[i]);
    size_t above = 0;
    for (size_t b = 0; b < buckets; b += lanes)
      above += hn::CountTrue(d, hn::Gt(hn::Load(d, best + b), mine));
    if (above < k) bound = std::min(bound, best[i]);
  }
  return std::max(bound, 1u);
}

size_t TopKRow(const uint32_t* keys, const uint32_t* mask, size_t n, size_t k, int32_t* ids) {
  if (n > kMaxRow) return TopKScalar(keys, mask, n, k, ids);
  const uint32_t bound = LowerBound(keys, mask, n, k);
  // Candidates by ascending id, padded to whole blocks with keys that rank below all.
  HWY_ALIGN uint32_t key[kMaxRow + 16];
  int32_t id[kMaxRow + 16];
  size_t count = 0;
  for (size_t i = 0; i < n; i += 16) {
    for (uint32_t bits = Above(keys, mask, i, bound - 1); bits != 0; bits &= bits - 1) {
      const size_t e = i + static_cast<size_t>(std::countr_zero(bits));
      key[count] = keys[e];
      id[count++] = static_cast<int32_t>(e);
    }
  }
  if (count > kMaxRanked) {
    uint64_t order[kMaxRow];
    for (size_t c = 0; c < count; ++c) {
      order[c] = static_cast<uint64_t>(key[c]) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id[c]));
    }
    const size_t kept = std::min(count, k);
    std::partial_sort(order, order + kept, order + count, std::greater<>());
    for (size_t c = 0; c < kept; ++c)
      ids[c] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(order[c]));
    return kept;
  }
  const DU d;
  const size_t lanes = hn::Lanes(d), padded = RoundUp(count, 16);
  std::fill(key + count, key + padded, 0u);
  for (size_t c = 0; c < count; ++c) {
    // Rank = how many are better: a larger key, or the same key and a lower id.
    const VU mine = hn::Set(d, key[c]);
    size_t better = 0;
    for (size_t b = 0; b < padded; b += lanes) {
      const VU v = hn::Load(d, key + b);
      better += hn::CountTrue(d, hn::Gt(v, mine));
    }
    size_t ties = 0;
    for (size_t b = 0; b < c; b += lanes) {
      const VU v = hn::Load(d, key + b);
      const auto before = hn::FirstN(d, c - b);
      ties += hn::CountTrue(d, hn::And(before, hn::Eq(v, mine)));
    }
    if (better + ties < k) ids[better + ties] = id[c];
  }
  return std::min(count, k);
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace carpool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace carpool {

HWY_EXPORT(Score);
HWY_EXPORT(TopKRow);
HWY_EXPORT(Target);

bool HasVectorScoring(const GateSpec& g) {
  constexpr auto kF32 = GateNumber::kF32;
  return g.logit_number == kF32 && g.score_number == kF32 && g.choice_number == kF32 &&
         g.bias_number == kF32 && g.order == ChoiceOrder::kTotal &&
         g.activation != GateActivation::kSigmoidTanh;
}

size_t ScoreRowVector(const GateSpec& gate, const float* logits, const float* bias,
                      const RowScores& out) {
  return HWY_DYNAMIC_DISPATCH(Score)(gate, logits, bias, out);
}

size_t TopK(const uint32_t* keys, const uint32_t* mask, size_t n, size_t k, int32_t* ids) {
  return HWY_DYNAMIC_DISPATCH(TopKRow)(keys, mask, n, k, ids);
}

std::string_view RowKernelTarget() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace carpool
#endif  // HWY_ONCE
