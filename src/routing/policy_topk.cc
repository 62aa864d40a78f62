// topk: a smaller fixed top-k for decode rows.
//
// Source: "expert_used_count" overrides of local inference engines; the baseline every batch-aware
// policy must beat. Formula: keep the first k' of the row's ranks 1…k. Knobs: k (required) = k',
// 1…top_k; k' = top_k is vanilla. Cost: O(1) per row. Not batch-coupled. When not to use it:
// whenever rows share a batch; oea with k0 = k' reads the same experts and drops less.
#include "routing/policy.h"

namespace carpool {
namespace {

class TopkPolicy final : public RoutingPolicy {
 public:
  TopkPolicy(size_t top_k, std::vector<size_t> k) : top_k_(top_k), k_(std::move(k)) {}
  size_t max_set() const override { return top_k_; }
  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    for (const uint32_t r : in.active) out.counts[r] = static_cast<int32_t>(k_[in.layer]);
  }

 private:
  size_t top_k_;
  std::vector<size_t> k_;
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  ASSIGN_OR_RETURN(auto k, setup.Integers("k", setup.gate.top_k, 1, setup.gate.top_k));
  return std::unique_ptr<RoutingPolicy>(
      std::make_unique<TopkPolicy>(setup.gate.top_k, std::move(k)));
}

constexpr KnobInfo kKnobs[] = {{"k", "experts per row", true, true, 1, 1e6}};

std::string Example(const GateSpec& g) { return fmt::format("topk:k={}", (g.top_k + 1) / 2); }
std::string Neutral(const GateSpec& g) { return fmt::format("topk:k={}", g.top_k); }

}  // namespace

extern const PolicyKind kTopkPolicy;
const PolicyKind kTopkPolicy{"topk", "a smaller fixed top-k", false, true, kKnobs, Make, Example,
                             Neutral};

}  // namespace carpool
