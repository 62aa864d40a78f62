#include "lab/whatif.h"

#include <algorithm>
#include <map>
#include <set>

#include "lab/statistics.h"

namespace carpool {
namespace {

GateSpec TraceGate(const RoutingTrace& trace, size_t experts) {
  GateSpec gate;
  gate.num_experts = experts;
  gate.top_k = trace.top_k;
  gate.activation = GateActivation::kIdentity;  // what the trace holds are scores already
  gate.group_score = GroupScore::kNone;
  return gate;
}

float ScoreOf(const TracedRow& row, size_t rank) {
  return row.scores.empty() ? 1.0f / static_cast<float>(rank + 1) : row.scores[rank];
}

struct Kept {
  double sum = 0.0;
  size_t count = 0;
};

/// Writes the row's scores, strictly descending in the recorded order, which a correction bias may
/// have made differ from the order of the scores: ranks decide, scores only weigh.
void FillLogits(const TracedRow& row, std::span<float> logits) {
  std::fill(logits.begin(), logits.end(), 0.0f);
  for (size_t i = 0; i < row.ids.size(); ++i)
    logits[static_cast<size_t>(row.ids[i])] = static_cast<float>(row.ids.size() - i);
}

Result<WhatIfRow> Replay(const RoutingTrace& trace, const GateSpec& gate,
                         const std::shared_ptr<const PolicySpec>& policy) {
  size_t max_rows = 1;
  for (const TracedStep& s : trace.steps) max_rows = std::max(max_rows, s.rows.size());
  ASSIGN_OR_RETURN(auto router, Router::Make(gate, policy, trace.num_layers, max_rows));
  WhatIfRow out;
  out.routing = PolicyText(*policy);
  std::vector<float> logits(max_rows * gate.num_experts);
  std::vector<RowInfo> rows(max_rows);
  std::map<size_t, Kept> requests;
  std::vector<double> kept;
  double assignments = 0.0;
  for (const TracedStep& step : trace.steps) {
    const size_t n = step.rows.size();
    for (size_t r = 0; r < n; ++r)
      FillLogits(step.rows[r], {logits.data() + r * gate.num_experts, gate.num_experts});
    const RoutedStep routed =
        router->Route(step.layer, {rows.data(), n}, {logits.data(), n, gate.num_experts}, {});
    std::set<int32_t> loaded;
    for (size_t r = 0; r < n; ++r) {
      const TracedRow& row = step.rows[r];
      double all = 0.0, mass = 0.0;
      for (size_t i = 0; i < row.ids.size(); ++i) {
        const auto score = static_cast<double>(ScoreOf(row, i));
        all += score;
        const int32_t* ids = routed.ids.Row(r);
        if (std::find(ids, ids + routed.counts[r], row.ids[i]) == ids + routed.counts[r]) continue;
        mass += score;
        ++assignments;
        loaded.insert(row.ids[i]);
      }
      kept.push_back(all > 0.0 ? mass / all : 1.0);
      Kept& request = requests[row.request];
      request.sum += kept.back();
      ++request.count;
    }
    out.distinct_experts += static_cast<double>(loaded.size());
  }
  out.distinct_experts /= static_cast<double>(trace.steps.size());
  out.experts_per_row = assignments / static_cast<double>(kept.size());
  out.mass_kept = 0.0;
  for (const double k : kept) out.mass_kept += k;
  out.mass_kept /= static_cast<double>(kept.size());
  out.mass_kept_p1 = Quantile(kept, 0.01);
  for (const auto& [request, k] : requests)
    out.worst.push_back({request, k.sum / static_cast<double>(k.count)});
  std::stable_sort(
      out.worst.begin(), out.worst.end(),
      [](const LostRequest& a, const LostRequest& b) { return a.mass_kept < b.mass_kept; });
  if (out.worst.size() > 5) out.worst.resize(5);
  return out;
}

}  // namespace

Result<WhatIfReport> WhatIf(const RoutingTrace& trace, const WhatIfOptions& o) {
  const size_t experts = o.num_experts == 0 ? trace.num_experts : o.num_experts;
  if (experts < trace.num_experts) {
    return MakeError(ErrorCode::kInvalidArgument, "--experts: the trace has expert {}, got {}",
                     trace.num_experts - 1, experts);
  }
  const GateSpec gate = TraceGate(trace, std::max(experts, trace.top_k));
  RETURN_IF_ERROR(ValidateGate(gate));
  WhatIfReport report;
  std::set<uint64_t> steps;
  std::set<size_t> layers;  // a trace may count layers without experts
  double rows = 0.0;
  for (const TracedStep& s : trace.steps) {
    steps.insert(s.step);
    layers.insert(s.layer);
    rows += static_cast<double>(s.rows.size());
  }
  report.steps = steps.size();
  report.rows_per_step = rows / static_cast<double>(trace.steps.size());
  report.has_scores = !trace.steps.front().rows.front().scores.empty();
  for (const auto& policy : o.policies) {
    ASSIGN_OR_RETURN(WhatIfRow row, Replay(trace, gate, policy));
    row.bytes = row.distinct_experts * static_cast<double>(layers.size()) * o.bytes_per_expert;
    if (o.bandwidth_gbs > 0.0) row.us = row.bytes / (o.bandwidth_gbs * 1e3);
    const double first =
        report.rows.empty() ? row.distinct_experts : report.rows.front().distinct_experts;
    row.saved = 1.0 - row.distinct_experts / first;
    report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace carpool
