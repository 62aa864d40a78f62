// ser: smart expert reduction, per row (the -ser option of ik_llama.cpp).
//
// Formula: of the row's vanilla ranks j = 1…k keep j if j <= kmin or u_j >= t · max over the k of
// u, with u the unbiased gate score. Knobs: kmin (required), 1…k; t (required), 0…1. kmin=k or t=0
// is vanilla. Cost: O(k) per row. Not batch-coupled: saves distinct experts without looking at
// other rows. When not to use it: gates with flat scores (sigmoid gates often are): all ratios are
// near 1 and nothing is dropped.
#include <algorithm>

#include "routing/policy.h"

namespace carpool {
namespace {

class SerPolicy final : public RoutingPolicy {
 public:
  SerPolicy(size_t top_k, std::vector<size_t> kmin, std::vector<double> t)
      : top_k_(top_k), kmin_(std::move(kmin)), t_(std::move(t)) {}
  size_t max_set() const override { return top_k_; }

  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    const size_t kmin = kmin_[in.layer];
    const auto t = static_cast<float>(t_[in.layer]);
    for (const uint32_t r : in.active) {
      const int32_t* ids = in.vanilla.Row(r);
      const float* score = in.scores.Row(r);
      float best = score[ids[0]];
      for (size_t i = 1; i < top_k_; ++i) best = score[ids[i]] > best ? score[ids[i]] : best;
      size_t count = 0;
      for (size_t i = 0; i < top_k_; ++i) {
        if (i < kmin || t == 0.0f || score[ids[i]] >= t * best)
          out.Set(r, count++, ids[i], SlotReason::kOwn);
      }
      out.counts[r] = static_cast<int32_t>(count);
    }
  }

 private:
  size_t top_k_;
  std::vector<size_t> kmin_;
  std::vector<double> t_;
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  const size_t k = setup.gate.top_k;
  ASSIGN_OR_RETURN(auto kmin, setup.Integers("kmin", k, 1, k));
  ASSIGN_OR_RETURN(auto t, setup.Numbers("t", 0.0, 0.0, 1.0));
  return std::unique_ptr<RoutingPolicy>(
      std::make_unique<SerPolicy>(k, std::move(kmin), std::move(t)));
}

constexpr KnobInfo kKnobs[] = {
    {"kmin", "ranks every row keeps", true, true, 1, 1e6},
    {"t", "share of the best selected score a further rank must reach", true, false, 0, 1},
};

std::string Example(const GateSpec& g) {
  return fmt::format("ser:kmin={},t=0.8", (g.top_k + 1) / 2);
}
std::string Neutral(const GateSpec& g) { return fmt::format("ser:kmin={},t=1", g.top_k); }

}  // namespace

extern const PolicyKind kSerPolicy;
const PolicyKind kSerPolicy{
    "ser",  "drop ranks far below the row's best score", false, true, kKnobs, Make, Example,
    Neutral};

}  // namespace carpool
