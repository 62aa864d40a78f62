// vanilla (alias exact): the model's own top-k. The router presets every row to it, so there is
// nothing to decide.
//
// Knobs: none. Cost: O(1). Not batch-coupled: a row's experts never depend on its batch mates.
// When not to use it: at small decode batches, when distinct experts are what the step pays for and
// a measured loss of quality is acceptable.
#include "routing/policy.h"

namespace carpool {
namespace {

class VanillaPolicy final : public RoutingPolicy {
 public:
  explicit VanillaPolicy(size_t k) : k_(k) {}
  size_t max_set() const override { return k_; }
  void Select(const PolicyInput&, const PolicyOutput&) noexcept override {}

 private:
  size_t k_;
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  return std::unique_ptr<RoutingPolicy>(std::make_unique<VanillaPolicy>(setup.gate.top_k));
}

std::string Example(const GateSpec&) { return "vanilla"; }
std::string Neutral(const GateSpec&) { return "vanilla"; }

}  // namespace

extern const PolicyKind kVanillaPolicy;
const PolicyKind kVanillaPolicy{"vanilla", "the model's own top-k", false, false, {}, Make, Example,
                                Neutral};

}  // namespace carpool
