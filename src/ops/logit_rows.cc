#include "ops/logit_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/logit_rows.cc"
#include "hwy/foreach_target.h"

// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace carpool {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;

bool AllFiniteRow(const float* HWY_RESTRICT x, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);  // of x * 0: stays 0 unless something is not finite
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::Zero(d), sum);
  bool finite = hn::GetLane(hn::SumOfLanes(d, sum)) == 0.0f;
  for (; i < n; ++i) finite = finite && std::isfinite(x[i]);
  return finite;
}

size_t ArgMaxRow(const float* HWY_RESTRICT x, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  auto most = hn::Set(d, kLeast), check = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    most = hn::Max(most, v);
    // NaN stays; an infinity minus itself would be one too, so values are compared, not subtracted.
    check = hn::IfThenElse(hn::Eq(v, v), check, v);
  }
  if (hn::CountTrue(d, hn::Eq(check, check)) != lanes) return n;
  float best = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) {
    if (std::isnan(x[i])) return n;
    best = std::max(best, x[i]);
  }
  if (best == kLeast) return n;
  const auto wanted = hn::Set(d, best);
  for (i = 0; i + lanes <= n; i += lanes) {
    const intptr_t at = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), wanted));
    if (at >= 0) return i + static_cast<size_t>(at);
  }
  while (x[i] != best) ++i;
  return i;
}

void ExpOfRow(float* HWY_RESTRICT x, size_t n, float shift, float scale) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto s = hn::Set(d, shift), f = hn::Set(d, scale);
  const auto one = [&](auto v) { return hn::Exp(d, hn::Mul(hn::Sub(v, s), f)); };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(one(hn::LoadU(d, x + i)), d, x + i);
  if (i == n) return;
  HWY_ALIGN float tail[16] = {};
  std::copy(x + i, x + n, tail);
  hn::Store(one(hn::Load(d, tail)), d, tail);
  std::copy(tail, tail + (n - i), x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace carpool
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace carpool {

HWY_EXPORT(AllFiniteRow);
HWY_EXPORT(ArgMaxRow);
HWY_EXPORT(ExpOfRow);

bool AllFinite(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(AllFiniteRow)(x.data(), x.size());
}

size_t ArgMax(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(ArgMaxRow)(x.data(), x.size());
}

void ExpRow(std::span<float> x, float shift, float scale) {
  HWY_DYNAMIC_DISPATCH(ExpOfRow)(x.data(), x.size(), shift, scale);
}

}  // namespace carpool
#endif
