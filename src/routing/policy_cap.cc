// cap: at most `budget` experts per layer, by router probability (after MoE-Spec, arXiv 2602.16052,
// which caps the verification step of speculative decoding this way; truncation, no substitution).
//
// As lynx, but experts are ordered by the sum of unbiased scores over the rows that chose them
// alone. Knobs: budget (required), 1…N; N is vanilla. Cost: O(rows · k + N log N). When not to use
// it: when rows must keep k experts (it only removes; xshare refills from the shared set).
#include "routing/expert_demand.h"

namespace carpool {
namespace {

class CapPolicy final : public RoutingPolicy {
 public:
  CapPolicy(const GateSpec& gate, std::vector<size_t> budget)
      : top_k_(gate.top_k), budget_(std::move(budget)), demand_(gate.num_experts) {}
  size_t max_set() const override { return top_k_; }

  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    demand_.Collect(in, top_k_);
    demand_.KeepBest(budget_[in.layer],
                     [this](size_t a, size_t b) { return demand_.mass(a) > demand_.mass(b); });
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
  return std::unique_ptr<RoutingPolicy>(std::make_unique<CapPolicy>(setup.gate, std::move(budget)));
}

constexpr KnobInfo kKnobs[] = {{"budget", "experts the decode rows may load", true, true, 1, 1e6}};

std::string Example(const GateSpec& g) {
  return fmt::format("cap:budget={}", (g.num_experts + 3) / 4);
}
std::string Neutral(const GateSpec& g) { return fmt::format("cap:budget={}", g.num_experts); }

}  // namespace

extern const PolicyKind kCapPolicy;
const PolicyKind kCapPolicy{"cap",   "keep the vanilla choices with the largest summed score",
                            true,    true,
                            kKnobs,  Make,
                            Example, Neutral};

}  // namespace carpool
