// xshare: a budgeted expert set shared by the batch (after XShare, arXiv 2602.07265).
//
// S = every decode row's best `warm` experts, then experts by the sum of unbiased scores over all
// decode rows (ties: lower id) until |S| = budget. Experts of prefill and exact rows are in S for
// free, outside the budget. Each row then takes its top-k within S; it always keeps its first.
// Knobs: budget (required), 1…N; N is vanilla. warm, 0…k, default 1.
// Cost: O(rows · N) to sum, O(N log N) to order.
// When not to use it: batches of unrelated texts at small budgets: the summed scores favour experts
// that everybody wants a little over the ones somebody wants most.
#include <algorithm>

#include "base/aligned.h"
#include "routing/expert_demand.h"
#include "routing/rank.h"

namespace carpool {
namespace {

class XsharePolicy final : public RoutingPolicy {
 public:
  XsharePolicy(const GateSpec& gate, std::vector<size_t> budget, std::vector<size_t> warm)
      : top_k_(gate.top_k),
        budget_(std::move(budget)),
        warm_(std::move(warm)),
        mass_(gate.num_experts),
        order_(gate.num_experts),
        shared_(RoundUp(gate.num_experts, kRowBlock)) {}
  size_t max_set() const override { return top_k_; }

  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    std::fill(shared_.begin(), shared_.end(), 0u);
    for (const uint32_t r : in.fixed) Join(in.vanilla.Row(r), top_k_);
    size_t size = 0;
    for (const uint32_t r : in.active) size += Join(in.vanilla.Row(r), warm_[in.layer]);
    Extend(in, size);
    for (const uint32_t r : in.active) Fill(in, r, out);
  }

 private:
  size_t Join(const int32_t* ids, size_t n) {
    size_t added = 0;
    for (size_t i = 0; i < n; ++i) {
      uint32_t& member = shared_[static_cast<size_t>(ids[i])];
      added += member == 0;
      member = ~0u;
    }
    return added;
  }

  void Extend(const PolicyInput& in, size_t size) {
    const size_t budget = budget_[in.layer];
    if (size >= budget) return;
    std::fill(mass_.begin(), mass_.end(), int64_t{0});
    for (const uint32_t r : in.active) {
      const uint32_t* key = in.keys.Row(r);
      const float* score = in.scores.Row(r);
      for (size_t e = 0; e < mass_.size(); ++e) {
        if (key[e] != kIneligibleKey) mass_[e] += MassUnits(score[e]);
      }
    }
    size_t n = 0;
    for (size_t e = 0; e < mass_.size(); ++e) {
      if (shared_[e] == 0) order_[n++] = static_cast<int32_t>(e);
    }
    const size_t take = std::min(budget - size, n);
    const auto first = order_.begin();
    std::partial_sort(first, first + static_cast<ptrdiff_t>(take),
                      first + static_cast<ptrdiff_t>(n), [this](int32_t a, int32_t b) {
                        const int64_t ma = mass_[static_cast<size_t>(a)],
                                      mb = mass_[static_cast<size_t>(b)];
                        return ma != mb ? ma > mb : a < b;
                      });
    Join(order_.data(), take);
  }

  void Fill(const PolicyInput& in, size_t r, const PolicyOutput& out) {
    const int32_t* vanilla = in.vanilla.Row(r);
    int32_t* ids = out.ids.Row(r);
    uint32_t& first = shared_[static_cast<size_t>(vanilla[0])];
    const uint32_t was = first;
    first = ~0u;
    const size_t count = TopK(in.keys.Row(r), shared_.data(), in.keys.cols, top_k_, ids);
    first = was;
    out.counts[r] = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      const bool own = std::find(vanilla, vanilla + top_k_, ids[i]) != vanilla + top_k_;
      out.reasons.Row(r)[i] = own ? SlotReason::kOwn : SlotReason::kPiggyback;
    }
  }

  size_t top_k_;
  std::vector<size_t> budget_;
  std::vector<size_t> warm_;
  std::vector<int64_t> mass_;     // [N]
  std::vector<int32_t> order_;    // [N] scratch
  std::vector<uint32_t> shared_;  // [padded N] all ones where the expert is in S
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  const size_t n = setup.gate.num_experts, k = setup.gate.top_k;
  ASSIGN_OR_RETURN(auto budget, setup.Integers("budget", n, 1, n));
  ASSIGN_OR_RETURN(auto warm, setup.Integers("warm", 1, 0, k));
  return std::unique_ptr<RoutingPolicy>(
      std::make_unique<XsharePolicy>(setup.gate, std::move(budget), std::move(warm)));
}

constexpr KnobInfo kKnobs[] = {
    {"budget", "size of the shared set", true, true, 1, 1e6},
    {"warm", "best experts of every row that enter it first", false, true, 0, 1e6},
};

std::string Example(const GateSpec& g) {
  return fmt::format("xshare:budget={}", (g.num_experts + 3) / 4);
}
std::string Neutral(const GateSpec& g) { return fmt::format("xshare:budget={}", g.num_experts); }

}  // namespace

extern const PolicyKind kXsharePolicy;
const PolicyKind kXsharePolicy{
    "xshare", "top-k within one budgeted set for the batch", true, true, kKnobs, Make, Example,
    Neutral};

}  // namespace carpool
