// lynx: subtractive batch-aware selection (after Lynx, arXiv 2411.08982).
//
// The experts of the vanilla union of all decode rows, ordered by (number of decode rows that chose
// it, then the sum of their unbiased scores for it, then the lower id); the best `budget` stay.
// Rows keep those of their vanilla choices that stayed, and always their first. Experts of prefill
// and exact rows stay for free, outside the budget. Knobs: budget (required), 1…N; N is vanilla.
// Cost: O(rows · k + N log N).
// When not to use it: with few rows per step (every expert is wanted once, so the order is noise),
// or with one rare but important expert per row: popularity, not score, decides first. cap orders
// by score instead.
#include "routing/expert_demand.h"

namespace carpool {
namespace {

class LynxPolicy final : public RoutingPolicy {
 public:
  LynxPolicy(const GateSpec& gate, std::vector<size_t> budget)
      : top_k_(gate.top_k), budget_(std::move(budget)), demand_(gate.num_experts) {}
  size_t max_set() const override { return top_k_; }

  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    demand_.Collect(in, top_k_);
    demand_.KeepBest(budget_[in.layer], [this](size_t a, size_t b) {
      return demand_.rows(a) != demand_.rows(b) ? demand_.rows(a) > demand_.rows(b)
                                                : demand_.mass(a) > demand_.mass(b);
    });
    demand_.Apply(in, top_k_, out);
  }

 private:
  size_t top_k_;
  std::vector<size_t> budget_;
  ExpertDemand demand_;
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  const size_t n = setup.gate.num_experts;
  ASSIGN_OR_RETURN(auto budget, setup.Integers("budget", n, 1, n));
  return std::unique_ptr<RoutingPolicy>(
      std::make_unique<LynxPolicy>(setup.gate, std::move(budget)));
}

constexpr KnobInfo kKnobs[] = {{"budget", "experts the decode rows may load", true, true, 1, 1e6}};

std::string Example(const GateSpec& g) {
  return fmt::format("lynx:budget={}", (g.num_experts + 3) / 4);
}
std::string Neutral(const GateSpec& g) { return fmt::format("lynx:budget={}", g.num_experts); }

}  // namespace

extern const PolicyKind kLynxPolicy;
const PolicyKind kLynxPolicy{
    "lynx", "keep the vanilla choices that most rows want", true, true, kKnobs, Make, Example,
    Neutral};

}  // namespace carpool
