// oea: Opportunistic Expert Activation (arXiv 2511.02237), the general form.
//
// Own experts of row i: the shortest prefix of its ranks with k0 experts, or with >= p of the
// unbiased mass of its vanilla top-k, whichever comes first. S = union of all rows' own experts
// (and of the experts that prefill and exact rows load anyway). Row i then gets its best experts
// within S, at most kmax, among its best maxp ranks. Ranks are those of the gate's choice (with
// correction bias); ties: the lower id. p=1, kmax=k, maxp=N is the paper's Algorithm 1. Knobs: k0
// (required) 1…k: k is vanilla; p in (0, 1], default 1; kmax k0…N, default k; maxp k0…N, default N.
// Cost: O(rows · N) on top of vanilla; reads one more mask per row.
// When not to use it: one decode row (it is plain top-k0 then: see min_rows); batches so large that
// S is nearly everything; when a row's output must not depend on its batch mates.
#include <algorithm>

#include "base/aligned.h"
#include "routing/policy.h"
#include "routing/rank.h"

namespace carpool {
namespace {

struct LayerKnobs {
  size_t k0, kmax, maxp;
  float p;
};

class OeaPolicy final : public RoutingPolicy {
 public:
  OeaPolicy(const GateSpec& gate, std::vector<LayerKnobs> layers, size_t max_set, size_t max_rows)
      : k_(gate.top_k),
        num_experts_(gate.num_experts),
        max_set_(max_set),
        layers_(std::move(layers)),
        in_union_(RoundUp(gate.num_experts, kRowBlock)),
        own_(max_rows),
        ranked_(gate.num_experts) {}

  size_t max_set() const override { return max_set_; }

  void Select(const PolicyInput& in, const PolicyOutput& out) noexcept override {
    std::fill(in_union_.begin(), in_union_.end(), 0u);
    const LayerKnobs& layer = layers_[in.layer];
    for (const uint32_t r : in.active) {
      own_[r] = OwnCount(in, layer, r);
      Join(in.vanilla.Row(r), own_[r]);
    }
    for (const uint32_t r : in.fixed) Join(in.vanilla.Row(r), k_);
    for (const uint32_t r : in.active) Fill(in, layer, r, out);
  }

 private:
  void Join(const int32_t* ids, size_t n) {
    for (size_t i = 0; i < n; ++i) in_union_[static_cast<size_t>(ids[i])] = ~0u;
  }

  size_t OwnCount(const PolicyInput& in, const LayerKnobs& layer, size_t r) const {
    const RowInfo& row = in.rows[r];
    const size_t k0 = row.k0 != 0 ? std::min<size_t>(row.k0, k_) : layer.k0;
    const float p = row.p == row.p ? row.p : layer.p;
    if (!(p < 1.0f)) return k0;
    const float* score = in.scores.Row(r);
    const int32_t* ids = in.vanilla.Row(r);
    float total = 0;
    for (size_t i = 0; i < k_; ++i) total += score[ids[i]];
    float sum = 0;
    for (size_t i = 0; i < k0; ++i) {
      sum += score[ids[i]];
      if (sum >= p * total) return i + 1;
    }
    return k0;
  }

  void Fill(const PolicyInput& in, const LayerKnobs& layer, size_t r, const PolicyOutput& out) {
    const RowInfo& row = in.rows[r];
    const size_t wanted = row.kmax != 0 ? row.kmax : layer.kmax;
    const size_t kmax = std::clamp(wanted, own_[r], max_set_);
    int32_t* ids = out.ids.Row(r);
    size_t count = 0;
    if (layer.maxp >= num_experts_) {
      count = TopK(in.keys.Row(r), in_union_.data(), in.keys.cols, kmax, ids);
    } else {
      const size_t ranks = TopK(in.keys.Row(r), nullptr, in.keys.cols, layer.maxp, ranked_.data());
      for (size_t i = 0; i < ranks && count < kmax; ++i) {
        if (in_union_[static_cast<size_t>(ranked_[i])] != 0) ids[count++] = ranked_[i];
      }
    }
    out.counts[r] = static_cast<int32_t>(count);
    SlotReason* reasons = out.reasons.Row(r);
    for (size_t i = 0; i < count; ++i)
      reasons[i] = i < own_[r] ? SlotReason::kOwn : SlotReason::kPiggyback;
  }

  size_t k_;
  size_t num_experts_;
  size_t max_set_;
  std::vector<LayerKnobs> layers_;
  std::vector<uint32_t> in_union_;  // [padded N] all ones where the expert is in S
  std::vector<size_t> own_;         // [rows]
  std::vector<int32_t> ranked_;     // [N]
};

Result<std::unique_ptr<RoutingPolicy>> Make(const PolicySetup& setup) {
  const size_t k = setup.gate.top_k, n = setup.gate.num_experts;
  ASSIGN_OR_RETURN(const auto k0, setup.Integers("k0", k, 1, k));
  ASSIGN_OR_RETURN(const auto p, setup.Numbers("p", 1.0, 0.0, 1.0));
  const size_t least = *std::max_element(k0.begin(), k0.end());
  ASSIGN_OR_RETURN(const auto kmax, setup.Integers("kmax", k, least, n));
  ASSIGN_OR_RETURN(const auto maxp, setup.Integers("maxp", n, least, n));
  std::vector<LayerKnobs> layers;
  size_t max_set = k;
  for (size_t l = 0; l < setup.layers; ++l) {
    layers.push_back({k0[l], kmax[l], maxp[l], static_cast<float>(p[l])});
    max_set = std::max(max_set, kmax[l]);
  }
  return std::unique_ptr<RoutingPolicy>(
      std::make_unique<OeaPolicy>(setup.gate, std::move(layers), max_set, setup.max_rows));
}

constexpr KnobInfo kKnobs[] = {
    {"k0", "own experts per row", true, true, 1, 1e6},
    {"p", "own experts stop at this share of the row's mass", false, false, 1e-6, 1.0},
    {"kmax", "most experts per row", false, true, 1, 1e6},
    {"maxp", "worst rank a row may ride on", false, true, 1, 1e6},
};

std::string Example(const GateSpec& g) { return fmt::format("oea:k0={}", (g.top_k + 2) / 3); }
std::string Neutral(const GateSpec& g) { return fmt::format("oea:k0={}", g.top_k); }

}  // namespace

extern const PolicyKind kOeaPolicy;
const PolicyKind kOeaPolicy{"oea",   "own top-k0, then only experts the batch already needs",
                            true,    true,
                            kKnobs,  Make,
                            Example, Neutral};

}  // namespace carpool
