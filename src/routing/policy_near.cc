// near: experts close to a row's selection threshold are exchangeable (after the remark in OEA,
// arXiv 2511.02237, that an expert whose score is close to the threshold costs little to swap).
//
// theta = the row's k-th choice score. Its ranks with score > theta + delta are certain; the
// certain experts of all rows (and the experts of prefill and exact rows) form S. The row fills its
// k places from its experts with score >= theta - delta, those in S first, then by score; it always
// keeps its first. With extra=n, up to n more experts of S with score >= theta - delta are added
// beyond k. delta is in score units; for softmax gates in log-probability: the bounds are
// theta·e^±delta. Knobs: delta (required), 0…100; extra, 0…N-k, default 0. delta=0 and extra=0 is
// vanilla. Cost: O(rows · N): two masked top-k passes per row. When not to use it: gates whose
// choice scores cluster within delta (then nothing is certain and S stays empty).
#include <algorithm>
#include <cmath>

#include "base/aligned.h"
#include "routing/policy.h"
#include "routing/rank.h"

namespace carpool {
namespace {

class NearPolicy final : public RoutingPolicy {
 public:
  NearPolicy(const GateSpec& gate, std::vector<double> delta, std::vector<size_t> extra)
      : top_k_(gate.top_k),
        relative_(gate.activation == GateActivation::kSoftmax),
        delta_(std::move(delta)),
        extra_(std::move(extra)),
        max_set_(top_k_ + *std::max_element(extra_.begin(), extra_.end())),
        in_union_(RoundUp(gate.num_experts, kRowBlock)),
        mask_(in_union_.size()),
        picked_(max_set_) {}
  size_t max_set() const override { return max_set_; }

  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    std::fill(in_union_.begin(), in_union_.end(), 0u);
    for (const uint32_t r : in.fixed) Join(in.vanilla.Row(r), top_k_);
    for (const uint32_t r : in.active) Join(in.vanilla.Row(r), NumCertain(in, r));
    for (const uint32_t r : in.active) Fill(in, r, out);
  }

 private:
  float Threshold(const PolicyInput& in, size_t r) const {
    return in.choices.Row(r)[in.vanilla.Row(r)[top_k_ - 1]];
  }
  float Upper(const PolicyInput& in, float theta) const {
    const double delta = delta_[in.layer];
    return static_cast<float>(relative_ ? theta + std::abs(theta) * std::expm1(delta)
                                        : theta + delta);
  }
  float Lower(const PolicyInput& in, float theta) const {
    const double delta = delta_[in.layer];
    return static_cast<float>(relative_ ? theta + std::abs(theta) * std::expm1(-delta)
                                        : theta - delta);
  }

  void Join(const int32_t* ids, size_t n) {
    for (size_t i = 0; i < n; ++i) in_union_[static_cast<size_t>(ids[i])] = ~0u;
  }

  size_t NumCertain(const PolicyInput& in, size_t r) const {
    const float bound = Upper(in, Threshold(in, r));
    const int32_t* ids = in.vanilla.Row(r);
    size_t n = 0;
    while (n < top_k_ && in.choices.Row(r)[ids[n]] > bound) ++n;
    return n;
  }

  void Fill(const PolicyInput& in, size_t r, const PolicyOutput& out) {
    const float theta = Threshold(in, r);
    if (theta != theta) return;  // too few numbers to have a threshold: the row stays vanilla
    const uint32_t* keys = in.keys.Row(r);
    const int32_t* vanilla = in.vanilla.Row(r);
    const size_t padded = in.keys.cols, extra = extra_[in.layer];
    const uint32_t least = RankKey(Lower(in, theta));
    int32_t* ids = picked_.data();
    size_t count = 0;
    if (delta_[in.layer] == 0.0) {
      // Ties at the threshold must not move: exactly the vanilla ranks, then whatever of S ties
      // with the last.
      count = static_cast<size_t>(std::copy(vanilla, vanilla + top_k_, ids) - ids);
      if (extra == 0) return;
      for (size_t e = 0; e < padded; ++e) mask_[e] = keys[e] >= least ? in_union_[e] : 0u;
      for (size_t i = 0; i < top_k_; ++i) mask_[static_cast<size_t>(vanilla[i])] = 0u;
      count += TopK(keys, mask_.data(), padded, extra, ids + count);
    } else {
      const auto first = static_cast<size_t>(vanilla[0]);
      const bool reserve =
          in_union_[first] == 0;  // its place, should S alone be able to fill the row
      for (size_t e = 0; e < padded; ++e) mask_[e] = keys[e] >= least ? in_union_[e] : 0u;
      count = TopK(keys, mask_.data(), padded, top_k_ + extra - reserve, ids);
      if (count < top_k_) {
        for (size_t e = 0; e < padded; ++e) mask_[e] = keys[e] >= least ? ~in_union_[e] : 0u;
        count += TopK(keys, mask_.data(), padded, top_k_ - count, ids + count);
      } else if (reserve) {
        ids[count++] = vanilla[0];
      }
    }
    const size_t certain = NumCertain(in, r);
    std::sort(ids, ids + count, [keys](int32_t a, int32_t b) {
      return keys[a] != keys[b] ? keys[a] > keys[b] : a < b;
    });
    for (size_t i = 0; i < count; ++i) {
      const bool own = i < certain || in_union_[static_cast<size_t>(ids[i])] == 0;
      out.Set(r, i, ids[i], own ? SlotReason::kOwn : SlotReason::kPiggyback);
    }
    out.counts[r] = static_cast<int32_t>(count);
  }

  size_t top_k_;
  bool relative_;
  std::vector<double> delta_;
  std::vector<size_t> extra_;
  size_t max_set_;
  std::vector<uint32_t> in_union_;  // [padded N] all ones where the expert is in S
  std::vector<uint32_t> mask_;      // [padded N]
  std::vector<int32_t> picked_;     // [max_set]
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  ASSIGN_OR_RETURN(auto delta, setup.Numbers("delta", 0, 0, 100));
  ASSIGN_OR_RETURN(auto extra,
                   setup.Integers("extra", 0, 0, setup.gate.num_experts - setup.gate.top_k));
  return std::unique_ptr<RoutingPolicy>(
      std::make_unique<NearPolicy>(setup.gate, std::move(delta), std::move(extra)));
}

constexpr KnobInfo kKnobs[] = {
    {"delta", "how close to the threshold an expert is exchangeable", true, false, 0, 100},
    {"extra", "shared experts a row may add beyond k", false, true, 0, 1e6},
};

std::string Example(const GateSpec& g) {
  return fmt::format("near:delta=0.05,extra={}", g.num_experts > g.top_k ? 1 : 0);
}
std::string Neutral(const GateSpec&) { return "near:delta=0"; }

}  // namespace

extern const PolicyKind kNearPolicy;
const PolicyKind kNearPolicy{"near",  "swap experts close to the threshold for shared ones",
                             true,    true,
                             kKnobs,  Make,
                             Example, Neutral};

}  // namespace carpool
