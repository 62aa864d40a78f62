#include "lab/quality.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "lab/statistics.h"

namespace carpool {
namespace {

/// What one row of logits is reduced to.
struct RowView {
  double max = 0.0;
  double log_sum = 0.0;  // log of the sum of exp(logit - max)
  size_t best = 0;       // arg max, lower id on ties
};

RowView Reduce(std::span<const float> logits) {
  RowView row;
  row.best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float max = logits[row.best];
  double sum = 0.0;
  for (const float l : logits) sum += std::exp(l - max);
  row.max = static_cast<double>(max);
  row.log_sum = std::log(sum);
  return row;
}

double Kl(std::span<const float> c, const RowView& cv, std::span<const float> b,
          const RowView& bv) {
  const auto max = static_cast<float>(cv.max);
  double weighted = 0.0, sum = 0.0;
  for (size_t i = 0; i < c.size(); ++i) {
    const auto e = static_cast<double>(std::exp(c[i] - max));
    weighted += e * (static_cast<double>(c[i]) - static_cast<double>(b[i]));
    sum += e;
  }
  const double kl = weighted / sum - ((cv.max + cv.log_sum) - (bv.max + bv.log_sum));
  return std::max(kl, 0.0);
}

struct Position {
  double nats = 0.0, kl = 0.0;
  bool agrees = true;
};

/// One policy on its way through the text.
struct Lane {
  std::unique_ptr<Lockstep> lockstep;
  std::vector<Position> row;                // [batch] of this step
  std::vector<std::vector<Position>> seen;  // [batch], the current window
  std::vector<double> kl;                   // every position
  Quality quality;

  void EndWindow(size_t window) {
    for (size_t b = 0; b < seen.size(); ++b) {
      RequestQuality r{b, window, 0.0, 0.0, 0.0};
      const auto n = static_cast<double>(seen[b].size());
      for (const Position& p : seen[b]) {
        r.cross_entropy += p.nats;
        r.kl += p.kl;
        r.top1_agreement += p.agrees ? 1.0 : 0.0;
        kl.push_back(p.kl);
      }
      r.cross_entropy /= n;
      r.kl /= n;
      r.top1_agreement /= n;
      quality.requests.push_back(r);
      seen[b].clear();
    }
  }

  Quality Finish() {
    const auto n = static_cast<double>(quality.requests.size());
    quality.tokens = kl.size();
    quality.top1_agreement = 0.0;
    for (const RequestQuality& r : quality.requests) {
      quality.cross_entropy += r.cross_entropy;
      quality.kl_mean += r.kl;
      quality.top1_agreement += r.top1_agreement;
      quality.kl_worst_request = std::max(quality.kl_worst_request, r.kl);
    }
    quality.cross_entropy /= n;
    quality.kl_mean /= n;
    quality.top1_agreement /= n;
    quality.kl_p50 = Quantile(kl, 0.5);
    quality.kl_p99 = Quantile(kl, 0.99);
    quality.kl_max = *std::max_element(kl.begin(), kl.end());
    quality.stats = lockstep->stats();
    return std::move(quality);
  }
};

}  // namespace

double KlDivergence(std::span<const float> candidate, std::span<const float> baseline) {
  return Kl(candidate, Reduce(candidate), baseline, Reduce(baseline));
}

Result<QualityReport> MeasureQuality(const Model& model, ThreadPool& pool,
                                     std::span<const int32_t> x, Router& baseline,
                                     std::span<Router* const> candidates,
                                     const PerplexityOptions& o) {
  ASSIGN_OR_RETURN(const size_t windows, PerplexityWindows(x.size(), o));
  if (o.context > model.config().max_position) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--context: wanted at most the model's {} positions, got {}",
                     model.config().max_position, o.context);
  }
  const size_t scored = o.windows == 0 ? windows : o.windows;
  std::vector<Lane> lanes(1 + candidates.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    Router& router = i == 0 ? baseline : *candidates[i - 1];
    lanes[i].lockstep =
        std::make_unique<Lockstep>(model, pool, router, o.activations, o.batch, o.context);
    lanes[i].row.resize(o.batch);
    lanes[i].seen.resize(o.batch);
  }
  std::vector<RowView> base(o.batch);
  std::vector<int32_t> tokens(o.batch);
  for (size_t w = 0; w < scored; ++w) {
    for (Lane& lane : lanes) lane.lockstep->Reset();
    for (size_t i = 0; i < o.context; ++i) {
      const auto at = [&](size_t b) { return b * windows * o.context + w * o.context + i; };
      for (size_t b = 0; b < o.batch; ++b) tokens[b] = x[at(b)];
      const MatView<const float> exact = lanes[0].lockstep->Step(tokens);
      for (size_t l = 0; l < lanes.size(); ++l) {
        Lane& lane = lanes[l];
        const MatView<const float> logits = l == 0 ? exact : lane.lockstep->Step(tokens);
        pool.ParallelFor(o.batch, [&](size_t b, size_t) {
          const auto row = logits.RowSpan(b);
          const RowView view = Reduce(row);
          if (l == 0) base[b] = view;
          const auto target = static_cast<size_t>(x[at(b) + 1]);
          lane.row[b] = {view.max + view.log_sum - static_cast<double>(row[target]),
                         l == 0 ? 0.0 : Kl(row, view, exact.RowSpan(b), base[b]),
                         view.best == base[b].best};
        });
        for (size_t b = 0; b < o.batch; ++b) lane.seen[b].push_back(lane.row[b]);
      }
      if (o.progress) o.progress(w * o.context + i + 1, scored * o.context);
    }
    for (Lane& lane : lanes) lane.EndWindow(w);
  }
  QualityReport report;
  report.baseline = lanes[0].Finish();
  for (size_t i = 1; i < lanes.size(); ++i) report.candidates.push_back(lanes[i].Finish());
  return report;
}

}  // namespace carpool
