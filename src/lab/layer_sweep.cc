#include "lab/layer_sweep.h"

#include <algorithm>
#include <map>
#include <set>

#include "routing/policy_spec.h"

namespace carpool {
namespace {

constexpr size_t kLanes = 6;           // policies scored side by side, each with its own cache
constexpr size_t kLayerTokens = 4096;  // scored per layer and k0: a ranking, not a verdict
constexpr double kShares[] = {0.5, 0.75, 1.0, 1.25};  // of the budget; costs may add up to less

std::string MaskText(const std::vector<size_t>& k0) {
  return fmt::format("oea:k0={}", fmt::join(k0, "/"));
}

double LayerT(const Quality& q, size_t layer) {
  return static_cast<double>(q.stats.moe[layer].distinct_experts) /
         static_cast<double>(q.stats.steps);
}

/// All (layer, k0) of one batch size that are still to be measured.
std::vector<LayerPoint> Missing(const GateSpec& gate, size_t layers, size_t batch,
                                const std::vector<LayerPoint>& known) {
  std::set<std::pair<size_t, size_t>> have;
  for (const LayerPoint& p : known)
    if (p.batch == batch) have.emplace(p.layer, p.k0);
  std::vector<LayerPoint> missing;
  for (size_t k0 = gate.top_k - 1; k0 >= 2; --k0)
    for (size_t l = 0; l < layers; ++l)
      if (have.count({l, k0}) == 0) missing.push_back({batch, l, k0, 0.0, 0.0});
  return missing;
}

}  // namespace

Result<std::vector<LayerPoint>> MeasureLayers(const Model& model, ThreadPool& pool,
                                              std::span<const int32_t> x, const SweepOptions& o,
                                              std::vector<LayerPoint> known) {
  const ModelConfig& config = model.config();
  const size_t layers = config.NumMoeLayers(), k = config.gate.top_k;
  ASSIGN_OR_RETURN(const auto vanilla, ParsePolicy("vanilla"));
  for (const size_t batch : o.batches) {
    const size_t rows = std::max<size_t>(batch, 256);
    PerplexityOptions quality;
    quality.batch = batch;
    quality.context = o.context;
    quality.activations = o.pace.activations;
    ASSIGN_OR_RETURN(const size_t windows, PerplexityWindows(x.size(), quality));
    quality.windows =
        std::clamp<size_t>(std::min(o.tokens, kLayerTokens) / (batch * o.context), 1, windows);
    const std::vector<LayerPoint> missing = Missing(config.gate, layers, batch, known);
    for (size_t first = 0; first < missing.size(); first += kLanes) {
      if (o.progress) o.progress(first, missing.size());
      const size_t n = std::min(kLanes, missing.size() - first);
      ASSIGN_OR_RETURN(auto base, Router::Make(config.gate, vanilla, layers, rows));
      std::vector<std::unique_ptr<Router>> routers;
      std::vector<Router*> pointers;
      for (size_t i = first; i < first + n; ++i) {
        std::vector<size_t> k0(layers, k);
        k0[missing[i].layer] = missing[i].k0;
        ASSIGN_OR_RETURN(auto policy, ParsePolicy(MaskText(k0)));
        ASSIGN_OR_RETURN(auto router, Router::Make(config.gate, policy, layers, rows));
        routers.push_back(std::move(router));
        pointers.push_back(routers.back().get());
      }
      ASSIGN_OR_RETURN(const QualityReport q,
                       MeasureQuality(model, pool, x, *base, pointers, quality));
      std::vector<LayerPoint> measured;
      const bool has_vanilla = std::any_of(known.begin(), known.end(), [&](const LayerPoint& p) {
        return p.batch == batch && p.k0 == k;
      });
      for (size_t l = 0; l < layers && !has_vanilla; ++l)
        measured.push_back({batch, l, k, 0.0, LayerT(q.baseline, l)});
      for (size_t i = 0; i < n; ++i) {
        LayerPoint p = missing[first + i];
        p.kl_mean = q.candidates[i].kl_mean;
        p.distinct_experts = LayerT(q.candidates[i], p.layer);
        measured.push_back(p);
      }
      if (o.on_layers) RETURN_IF_ERROR(o.on_layers(measured));
      known.insert(known.end(), measured.begin(), measured.end());
    }
  }
  std::erase_if(known, [&](const LayerPoint& p) {
    return std::find(o.batches.begin(), o.batches.end(), p.batch) == o.batches.end();
  });
  std::sort(known.begin(), known.end(), [](const LayerPoint& a, const LayerPoint& b) {
    return std::tie(a.batch, a.layer, b.k0) < std::tie(b.batch, b.layer, a.k0);
  });
  return known;
}

std::vector<size_t> ChooseK0(const std::vector<LayerPoint>& points, size_t batch, double max_kl) {
  // By layer, k0 descending: a step down goes to any later entry, so that a k0 which costs more
  // than a smaller one is passed over.
  std::map<size_t, std::vector<LayerPoint>> layers;
  for (const LayerPoint& p : points)
    if (p.batch == batch) layers[p.layer].push_back(p);
  std::map<size_t, size_t> at;
  for (auto& [layer, list] : layers) {
    std::sort(list.begin(), list.end(),
              [](const LayerPoint& a, const LayerPoint& b) { return a.k0 > b.k0; });
    at[layer] = 0;
  }
  double spent = 0.0;
  while (true) {
    double best = 0.0;
    size_t best_layer = 0, best_at = 0;
    for (const auto& [layer, list] : layers) {
      const LayerPoint& now = list[at[layer]];
      for (size_t i = at[layer] + 1; i < list.size(); ++i) {
        const double cost = std::max(list[i].kl_mean - now.kl_mean, 1e-9);
        const double gain = (now.distinct_experts - list[i].distinct_experts) / cost;
        if (spent + cost <= max_kl && gain > best) best = gain, best_layer = layer, best_at = i;
      }
    }
    if (best <= 0.0) break;
    const auto& list = layers[best_layer];
    spent += std::max(list[best_at].kl_mean - list[at[best_layer]].kl_mean, 1e-9);
    at[best_layer] = best_at;
  }
  std::vector<size_t> k0;
  for (const auto& [layer, list] : layers) k0.push_back(list[at[layer]].k0);
  return k0;
}

std::vector<std::string> PerLayerPolicies(const std::vector<LayerPoint>& points, size_t batch,
                                          double max_kl) {
  std::vector<std::string> policies;
  for (const double share : kShares) {
    const std::vector<size_t> k0 = ChooseK0(points, batch, share * max_kl);
    if (k0.empty() || std::count(k0.begin(), k0.end(), k0.front()) == std::ssize(k0)) continue;
    if (std::find(policies.begin(), policies.end(), MaskText(k0)) == policies.end())
      policies.push_back(MaskText(k0));
  }
  return policies;
}

}  // namespace carpool
