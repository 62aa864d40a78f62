#include "lab/plan.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "routing/policy_spec.h"

namespace carpool {
namespace {

/// What one layer's routing looks like: rows of every distinct expert, over all draws.
struct Draws {
  double distinct = 0.0;                  // mean
  double assignments = 0.0;               // mean
  std::vector<double> experts_with_rows;  // [r]: mean number of experts with r rows
};

Result<Draws> DrawRouting(const PlanOptions& o, const std::shared_ptr<const PolicySpec>& policy,
                          size_t batch) {
  const size_t n = o.shape.gate.num_experts;
  ASSIGN_OR_RETURN(auto router, Router::Make(o.shape.gate, policy, 1, batch));
  std::mt19937_64 random(o.seed + batch);
  std::normal_distribution<float> normal;
  std::vector<float> logits(batch * n), bias(o.shape.gate.has_bias ? n : 0);
  std::vector<RowInfo> rows(batch);
  Draws d;
  d.experts_with_rows.resize(batch + 1);
  const double share = 1.0 / static_cast<double>(o.draws);
  for (size_t i = 0; i < o.draws; ++i) {
    for (float& l : logits) l = normal(random);
    const RoutedStep step = router->Route(0, rows, {logits.data(), batch, n}, bias);
    d.distinct += static_cast<double>(step.stats.distinct_experts) * share;
    d.assignments += static_cast<double>(step.stats.assignments) * share;
    for (size_t e = 0; e + 1 < step.plan.offsets.size(); ++e)
      d.experts_with_rows[step.plan.offsets[e + 1] - step.plan.offsets[e]] += share;
  }
  return d;
}

/// Rescales drawn experts to a measured T: the same assignments spread over `t` experts.
void Rescale(Draws& d, double t) {
  std::vector<double> scaled(d.experts_with_rows.size());
  const double factor = d.distinct / t;  // rows per expert grow by this
  for (size_t r = 1; r < scaled.size(); ++r) {
    const double at =
        std::min(static_cast<double>(r) * factor, static_cast<double>(scaled.size() - 1));
    const auto low = std::max<size_t>(static_cast<size_t>(at), 1);
    const size_t high = std::min(low + 1, scaled.size() - 1);
    const double part = std::clamp(at - static_cast<double>(low), 0.0, 1.0);
    const double count = d.experts_with_rows[r] / factor;
    scaled[low] += count * (1 - part);
    scaled[high] += count * part;
  }
  d.experts_with_rows = std::move(scaled);
  d.distinct = t;
}

struct Times {
  double memory = 0.0, compute = 0.0, latency = 0.0;  // us
};

/// Weights read once and multiplied with `rows` rows.
Times MatTime(const PlanOptions& o, double weights, WeightFormat format, double rows) {
  const Hardware& h = o.hardware;
  const auto devices = static_cast<double>(h.devices);
  const double padded =
      std::ceil(rows / static_cast<double>(h.tile_rows)) * static_cast<double>(h.tile_rows);
  return {weights * BytesPerWeight(format) / (h.bandwidth_gbs * devices * 1e3),
          weights * padded / (Gmacs(h, format, rows) * devices * 1e3), 0.0};
}

/// Reading and computing overlap in part where the same threads do both (a CPU): between adding up
/// (exponent 1) and the larger hiding the smaller (infinity). With asynchronous copies (a GPU) the
/// larger one hides the smaller.
double Overlapped(const Hardware& h, const Times& t) {
  constexpr double kExponent = 1.4;
  if (h.tile_rows > 1) return std::max(t.memory, t.compute);
  return std::pow(std::pow(t.memory, kExponent) + std::pow(t.compute, kExponent), 1 / kExponent);
}

struct LayerTime {
  double us = 0.0;
  Times parts;
};

LayerTime MoeLayer(const PlanOptions& o, const Draws& d, size_t batch) {
  const MoeShape& s = o.shape;
  const auto hidden = static_cast<double>(s.hidden);
  const double expert = 3 * hidden * static_cast<double>(s.width);
  LayerTime layer;
  const auto add = [&](const Times& t, double count) {
    layer.us += count * Overlapped(o.hardware, t);
    layer.parts.memory += count * t.memory;
    layer.parts.compute += count * t.compute;
  };
  for (size_t r = 1; r < d.experts_with_rows.size(); ++r)
    if (d.experts_with_rows[r] > 0.0)
      add(MatTime(o, expert, o.expert_format, static_cast<double>(r)), d.experts_with_rows[r]);
  if (s.shared_width > 0)
    add(MatTime(o, 3 * hidden * static_cast<double>(s.shared_width), o.expert_format,
                static_cast<double>(batch)),
        1.0);
  add(MatTime(o, hidden * static_cast<double>(s.gate.num_experts), WeightFormat::kBF16,
              static_cast<double>(batch)),
      1.0);
  const Hardware& h = o.hardware;
  layer.parts.latency = h.launch_us * static_cast<double>(h.launches);
  if (h.devices > 1 && h.interconnect_gbs > 0) {
    // One all-reduce of the layer's output: launch plus twice its bytes over the link.
    layer.parts.latency +=
        2 * h.launch_us + 2 * static_cast<double>(batch) * hidden * 2 / (h.interconnect_gbs * 1e3);
  }
  layer.us += layer.parts.latency;
  return layer;
}

double KvBytesRead(const MoeShape& s, size_t context) {
  const auto attended =
      static_cast<double>(s.sparse_topk == 0 ? context : std::min(context, s.sparse_topk));
  return s.kv_bytes_per_token * attended + s.index_bytes_per_token * static_cast<double>(context);
}

double UniformBound(const PolicySpec& policy, const GateSpec& gate, size_t batch) {
  double own = static_cast<double>(gate.top_k);
  for (const char* knob : {"k0", "k", "kmin"})
    if (const KnobValue* v = policy.Find(knob)) own = v->values.front();
  const auto n = static_cast<double>(gate.num_experts);
  double bound = n * (1 - std::pow(1 - own / n, static_cast<double>(batch)));
  if (const KnobValue* v = policy.Find("budget")) bound = std::min(bound, v->values.front());
  return bound;
}

std::string Bound(const Times& t) {
  if (t.latency > t.memory && t.latency > t.compute) return "latency";
  return t.memory >= t.compute ? "memory" : "compute";
}

/// Rows of one expert whose arithmetic takes as long as reading its weights. On CPUs the rate
/// itself depends on the rows.
double BalanceRows(const PlanOptions& o, double expert) {
  const Times one = MatTime(o, expert, o.expert_format, 1);
  const Hardware& h = o.hardware;
  if (h.tile_rows > 1 || h.rate_rows.empty())
    return one.memory / one.compute * static_cast<double>(h.tile_rows);
  double rows = 1.0;
  while (rows < 4096.0 && MatTime(o, expert, o.expert_format, rows).compute < one.memory)
    rows += 0.25;
  return rows;
}

std::string ExpertSentence(const PlanOptions& o, double expert, double balance) {
  const Hardware& h = o.hardware;
  const Times tile = MatTime(o, expert, o.expert_format, 1);
  const std::string where = h.devices > 1 ? fmt::format(" by {} devices", h.devices) : "";
  std::string text = fmt::format("One expert is read in {:.3g} us{}", tile.memory, where);
  if (h.tile_rows == 1)
    return text + fmt::format("; its arithmetic takes as long from {:.1f} rows on.", balance);
  text +=
      fmt::format("; one tile of {} rows takes {:.3g} us to multiply", h.tile_rows, tile.compute);
  if (tile.compute > tile.memory) {
    return text +
           ", however few rows are in it: experts are compute-bound from the first row on, "
           "and each distinct expert costs its tile.";
  }
  return text + fmt::format(": memory-bound up to {:.0f} rows per expert.",
                            std::floor(balance / static_cast<double>(h.tile_rows)) *
                                static_cast<double>(h.tile_rows));
}

std::string PlanVerdict(const PlanOptions& o, const PlanReport& report) {
  const PlanRow* best = nullptr;
  for (const PlanRow& r : report.rows)
    if (best == nullptr || r.speedup > best->speedup) best = &r;
  const Hardware& h = o.hardware;
  if (best == nullptr || best->speedup < 1.03) {
    std::string why = "what it saves is small against the rest of the step";
    if (best != nullptr && best->bound == "latency")
      why = "launches and synchronisation dominate the step, not the experts";
    return fmt::format("Sharing experts does not pay on {} for {}: {}.", h.name, o.shape.name, why);
  }
  std::string why = best->bound == "latency"
                        ? "though launches and synchronisation are the largest part of the step"
                    : best->bound == "memory"
                        ? "since the step is bound by reading weights, and fewer experts are read"
                    : h.tile_rows > 1
                        ? fmt::format(
                              "although its experts are compute-bound: {:.1f} rows per "
                              "expert are padded to tiles of {}, so each distinct expert "
                              "costs a whole tile whether it serves one row or many",
                              best->rows_per_expert, h.tile_rows)
                        : "although arithmetic has become the larger part: rows per expert grow as "
                          "experts are shared";
  if (report.cache_resident)
    why += "; a layer's experts fit into the cache, so take bandwidth figures with care";
  return fmt::format("Sharing experts pays on {} for {}: up to {:.2f}x with {} at batch {}, {}.",
                     h.name, o.shape.name, best->speedup, best->routing, best->batch, why);
}

}  // namespace

Result<PlanReport> MakePlan(const PlanOptions& o) {
  const MoeShape& s = o.shape;
  const Hardware& h = o.hardware;
  const size_t cells = o.batches.size() * o.policies.size();
  if (!o.measured_t.empty() && o.measured_t.size() != cells) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--measured-t: wanted {} numbers ({} batch sizes x {} policies), got {}",
                     cells, o.batches.size(), o.policies.size(), o.measured_t.size());
  }
  const auto hidden = static_cast<double>(s.hidden);
  const double expert = 3 * hidden * static_cast<double>(s.width);
  const double layers = o.layer_only ? 1.0 : static_cast<double>(s.moe_layers);
  const double shared = 3 * hidden * static_cast<double>(s.shared_width);
  const double dense = o.layer_only ? 0.0 : s.dense_parameters * BytesPerWeight(o.dense_format);
  PlanReport report;
  report.expert_bytes = expert * BytesPerWeight(o.expert_format);
  report.weight_bytes = layers * (static_cast<double>(s.gate.num_experts) * report.expert_bytes +
                                  shared * BytesPerWeight(o.expert_format) +
                                  hidden * static_cast<double>(s.gate.num_experts) * 2) +
                        dense;
  const size_t largest = *std::max_element(o.batches.begin(), o.batches.end());
  if (!o.layer_only) {
    report.kv_bytes = static_cast<double>(largest) * static_cast<double>(o.context) *
                      (s.kv_bytes_per_token + s.index_bytes_per_token);
  }
  report.memory_bytes = h.memory_gb * 1e9 * static_cast<double>(h.devices);
  report.fits = report.weight_bytes + report.kv_bytes <= report.memory_bytes;
  report.cache_resident = static_cast<double>(s.gate.num_experts) * report.expert_bytes <=
                          h.cache_mb * 1e6 * static_cast<double>(h.devices);
  report.balance_rows = BalanceRows(o, expert);
  report.expert_sentence = ExpertSentence(o, expert, report.balance_rows);
  for (size_t b = 0; b < o.batches.size(); ++b) {
    const size_t batch = o.batches[b];
    const size_t first = report.rows.size();
    for (size_t p = 0; p < o.policies.size(); ++p) {
      ASSIGN_OR_RETURN(Draws d, DrawRouting(o, o.policies[p], batch));
      if (!o.measured_t.empty()) {
        const double t = o.measured_t[b * o.policies.size() + p];
        if (t < 1.0 || t > static_cast<double>(s.gate.num_experts)) {
          return MakeError(ErrorCode::kInvalidArgument, "--measured-t: wanted 1 to {}, got {}",
                           s.gate.num_experts, t);
        }
        Rescale(d, t);
      }
      const LayerTime moe = MoeLayer(o, d, batch);
      PlanRow row;
      row.batch = batch;
      row.routing = PolicyText(*o.policies[p]);
      row.distinct_experts = d.distinct;
      row.uniform_bound = UniformBound(*o.policies[p], s.gate, batch);
      row.rows_per_expert = d.assignments / d.distinct;
      const double kv = o.layer_only ? 0.0 : static_cast<double>(batch) * KvBytesRead(s, o.context);
      row.bytes =
          layers * (d.distinct * report.expert_bytes + shared * BytesPerWeight(o.expert_format) +
                    hidden * static_cast<double>(s.gate.num_experts) * 2) +
          dense + kv;
      Times total{layers * moe.parts.memory, layers * moe.parts.compute,
                  layers * moe.parts.latency};
      row.moe_us = moe.us;
      row.us = layers * moe.us;
      if (!o.layer_only) {
        const Times rest =
            MatTime(o, s.dense_parameters, o.dense_format, static_cast<double>(batch));
        const double kv_us = kv / (h.bandwidth_gbs * static_cast<double>(h.devices) * 1e3);
        // Attention's own launches and its all-reduce cost about what a MoE layer's do.
        row.us += Overlapped(h, rest) + kv_us + total.latency;
        total = {total.memory + rest.memory + kv_us, total.compute + rest.compute,
                 2 * total.latency};
      }
      row.bound = Bound(total);
      row.tokens_per_s = static_cast<double>(batch) / row.us * 1e6;
      report.rows.push_back(row);
      report.rows.back().speedup = report.rows[first].us / row.us;
    }
  }
  report.sentence = PlanVerdict(o, report);
  return report;
}

}  // namespace carpool
