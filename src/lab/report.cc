#include "lab/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "base/file_writer.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "carpool/source_dir.h"
#include "lab/ab_json.h"
#include "lab/html_page.h"
#include "lab/svg_plot.h"

namespace carpool {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string CpuName() {
  const auto text = ReadTextFile("/proc/cpuinfo");
  if (!text) return "unknown";
  const size_t at = text->find("model name");
  if (at == std::string::npos) return "unknown";
  const size_t colon = text->find(": ", at), end = text->find('\n', at);
  return colon == std::string::npos || colon > end ? "unknown"
                                                   : text->substr(colon + 2, end - colon - 2);
}

/// The commit the source tree has checked out now, from its files; empty when there is none.
std::string GitCommit() {
  std::error_code ec;
  std::filesystem::path git = std::filesystem::path(CARPOOL_SOURCE_DIR) / ".git";
  const auto read = [](const std::filesystem::path& p) -> std::string {
    auto text = ReadTextFile(p.string());
    if (!text) return {};
    std::string s = std::move(text).value();
    while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
    return s;
  };
  std::filesystem::path common = git;
  if (std::filesystem::is_regular_file(git, ec)) {  // a linked work tree
    const std::string line = read(git);
    if (!line.starts_with("gitdir: ")) return {};
    git = line.substr(8);
    common = git / read(git / "commondir");
  }
  const std::string head = read(git / "HEAD");
  if (!head.starts_with("ref: ")) return head;
  const std::string ref = head.substr(5);
  if (const std::string loose = read(common / ref); !loose.empty()) return loose;
  const std::string packed = read(common / "packed-refs");
  const size_t at = packed.find(" " + ref + "\n");
  return at == std::string::npos || at < 40 ? std::string() : packed.substr(at - 40, 40);
}

std::vector<size_t> BatchesOf(const std::vector<SweepPoint>& points) {
  std::vector<size_t> batches;
  for (const SweepPoint& p : points)
    if (std::find(batches.begin(), batches.end(), p.batch) == batches.end())
      batches.push_back(p.batch);
  return batches;
}

/// T ascending, cross-entropy; vanilla ends every curve.
using Curve = std::vector<std::pair<double, double>>;
std::map<std::string, Curve> Curves(const std::vector<SweepPoint>& points, size_t batch) {
  std::map<std::string, Curve> curves;
  std::optional<std::pair<double, double>> vanilla;
  for (const SweepPoint& p : points) {
    if (p.batch != batch) continue;
    if (p.routing == "vanilla") {
      vanilla = {p.distinct_experts, p.cross_entropy};
    } else {
      curves[PolicyFamily(p.routing)].push_back({p.distinct_experts, p.cross_entropy});
    }
  }
  for (auto& [family, curve] : curves) {
    if (vanilla) curve.push_back(*vanilla);
    std::sort(curve.begin(), curve.end());
  }
  return curves;
}

std::optional<double> At(const Curve& curve, double x) {
  for (size_t i = 0; i + 1 < curve.size(); ++i) {
    const auto [x0, y0] = curve[i];
    const auto [x1, y1] = curve[i + 1];
    if (x < x0 || x > x1) continue;
    return x1 > x0 ? y0 + (x - x0) / (x1 - x0) * (y1 - y0) : std::min(y0, y1);
  }
  return std::nullopt;
}

Rows PointRows(const std::vector<SweepPoint>& points) {
  Rows rows = {{"routing", "batch", "T", "experts/row", "cross-entropy", "CE change", "KL mean",
                "KL p99", "worst request KL", "top-1", "MoE us/layer", "step us", "tokens/s",
                "step ratio", "95 % low", "95 % high"}};
  for (const SweepPoint& p : points) {
    rows.push_back(
        {p.routing, fmt::format("{}", p.batch), fmt::format("{:.2f}", p.distinct_experts),
         fmt::format("{:.2f}", p.experts_per_row), fmt::format("{:.4f}", p.cross_entropy),
         fmt::format("{:+.4f}", p.ce_change), fmt::format("{:.5f}", p.kl_mean),
         fmt::format("{:.4f}", p.kl_p99), fmt::format("{:.5f}", p.kl_worst_request),
         fmt::format("{:.4f}", p.top1_agreement), fmt::format("{:.1f}", p.moe_us),
         fmt::format("{:.0f}", p.step_us), fmt::format("{:.0f}", p.tokens_per_s),
         fmt::format("{:.4f}", p.step_ratio.value), fmt::format("{:.4f}", p.step_ratio.low),
         fmt::format("{:.4f}", p.step_ratio.high)});
  }
  return rows;
}

void AddRunInfo(HtmlPage& page, const RunInfo& run) {
  page.Heading("Where these numbers come from");
  Rows rows = {{"", ""}, {"command", run.command}, {"model", run.model}, {"text", run.text}};
  for (const auto& [name, value] : run.facts) rows.push_back({name, value});
  page.Table(rows);
}

Status MakeDirectory(const std::string& dir) {
  std::error_code ec;
  std::filesystem::create_directories(dir, ec);
  if (ec) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: cannot create the folder: {}", dir,
                     ec.message());
  }
  return {};
}

}  // namespace

RunInfo DescribeRun(const std::string& command, const std::string& model, const std::string& text,
                    size_t threads, uint64_t seed) {
  RunInfo run{command, model, text, {}};
  run.facts = {{"date", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
               {"processor", CpuName()},
               {"threads", fmt::format("{} of {} usable", threads, UsableCpus())},
               {"carpool", CARPOOL_VERSION},
               {"git commit of the source tree", GitCommit()},
               {"compiler", __VERSION__},
               {"seed", fmt::format("{}", seed)}};
  return run;
}

std::string CrossEntropyPlot(const std::vector<SweepPoint>& points, size_t batch) {
  Plot plot{fmt::format("Cross-entropy against distinct experts, B = {}", batch),
            "distinct experts per layer and step (T)",
            "cross-entropy (nats per token)",
            {}};
  for (auto& [family, curve] : Curves(points, batch))
    plot.series.push_back({family, curve, true, true});
  return RenderSvg(plot);
}

std::string MoeTimePlot(const std::vector<SweepPoint>& points, const LatencyFit* fit) {
  Plot plot{"MoE time against distinct experts",
            "distinct experts per layer and step (T)",
            "us per MoE layer and step",
            {}};
  for (const size_t batch : BatchesOf(points)) {
    PlotSeries measured{fmt::format("B = {}", batch), {}, false, true};
    PlotSeries fitted{fmt::format("B = {}, fit", batch), {}, true, false};
    for (const SweepPoint& p : points) {
      if (p.batch != batch) continue;
      measured.points.push_back({p.distinct_experts_free, p.moe_us});
      // Along rows that keep all k experts: pruned rows have fewer assignments and lie below.
      const bool whole = p.experts_per_row > 0.97 * points.front().experts_per_row;
      if (fit != nullptr && whole)
        fitted.points.push_back(
            {p.distinct_experts_free, fit->Predict(p.assignments, p.distinct_experts_free)});
    }
    std::sort(fitted.points.begin(), fitted.points.end());
    plot.series.push_back(std::move(measured));
    if (fit != nullptr) plot.series.push_back(std::move(fitted));
  }
  return RenderSvg(plot);
}

std::vector<std::string> CompareFamilies(const std::vector<SweepPoint>& points) {
  std::vector<std::string> lines;
  for (const size_t batch : BatchesOf(points)) {
    const auto curves = Curves(points, batch);
    const auto oea = curves.find("oea");
    if (oea == curves.end()) continue;
    for (const auto& [family, curve] : curves) {
      if (family == "oea") continue;
      // Where a measured point of either curve lies within the other's range.
      size_t wins = 0, losses = 0;
      double best = 0.0, worst = 0.0;
      std::vector<double> lost_at;
      const auto compare = [&](double x, double o, double r) {
        wins += o < r;
        if (o > r) ++losses, lost_at.push_back(x);
        best = std::max(best, r - o);
        worst = std::max(worst, o - r);
      };
      for (size_t i = 0; i + 1 < oea->second.size(); ++i)
        if (const auto r = At(curve, oea->second[i].first))
          compare(oea->second[i].first, oea->second[i].second, *r);
      for (size_t i = 0; i + 1 < curve.size(); ++i)
        if (const auto o = At(oea->second, curve[i].first))
          compare(curve[i].first, *o, curve[i].second);
      if (wins + losses == 0) continue;
      std::string line = fmt::format(
          "B = {}: at equal T, oea has the lower cross-entropy than {} at {} of {} measured points "
          "(by up to {:.4f} nats)",
          batch, family, wins, wins + losses, best);
      if (losses > 0) {
        line += fmt::format("; {} is lower by up to {:.4f} between T = {:.1f} and {:.1f}", family,
                            worst, *std::min_element(lost_at.begin(), lost_at.end()),
                            *std::max_element(lost_at.begin(), lost_at.end()));
      }
      lines.push_back(line + ".");
    }
  }
  return lines;
}

Rows LayerRows(const std::vector<LayerPoint>& layers) {
  std::map<std::pair<size_t, size_t>, std::map<size_t, const LayerPoint*, std::greater<>>> table;
  std::set<size_t, std::greater<>> k0s;
  for (const LayerPoint& p : layers) {
    table[{p.batch, p.layer}][p.k0] = &p;
    k0s.insert(p.k0);
  }
  Rows rows = {{"layer", "batch"}};
  for (const size_t k0 : k0s) rows[0].push_back(fmt::format("k0={}", k0));
  for (const auto& [place, by_k0] : table) {
    rows.push_back({fmt::format("{}", place.second), fmt::format("{}", place.first)});
    for (const size_t k0 : k0s) {
      const auto p = by_k0.find(k0);
      rows.back().push_back(p == by_k0.end() ? std::string()
                                             : fmt::format("{:.5f} ({:.1f})", p->second->kl_mean,
                                                           p->second->distinct_experts));
    }
  }
  return rows;
}

Status WriteSweepReport(const std::string& dir, const RunInfo& run, const Calibration& c) {
  RETURN_IF_ERROR(MakeDirectory(dir));
  HtmlPage page("Carpool sweep: what sharing experts buys and costs");
  page.Heading("Recommended settings");
  page.Paragraph(
      fmt::format("The fastest measured setting with mean KL <= {} and p99 KL <= {}{}, whose "
                  "step-time ratio to "
                  "vanilla is below 1 with 95 % confidence; vanilla where there is none.",
                  c.budget.max_kl, c.budget.max_kl_p99,
                  std::isfinite(c.budget.max_ce)
                      ? fmt::format(" and cross-entropy change <= {}", c.budget.max_ce)
                      : std::string()));
  page.Table(PointRows(c.recommended));
  for (const std::string& line : CompareFamilies(c.points)) page.Paragraph(line);
  for (const size_t batch : BatchesOf(c.points)) {
    const std::string svg = CrossEntropyPlot(c.points, batch);
    page.Raw(svg);
    RETURN_IF_ERROR(WriteTextFile(fmt::format("{}/cross_entropy_b{}.svg", dir, batch), svg));
  }
  const std::string times = MoeTimePlot(c.points, c.has_fit ? &c.fit : nullptr);
  page.Raw(times);
  RETURN_IF_ERROR(WriteTextFile(dir + "/moe_time.svg", times));
  if (c.has_fit) {
    page.Paragraph(fmt::format(
        "Fit over all points: us per layer = {:.4f} x assignments + {:.3f} x T + {:.1f}, R^2 = "
        "{:.4f}.",
        c.fit.a, c.fit.b, c.fit.c, c.fit.r2));
  }
  page.Heading("Pareto front (T, cross-entropy)");
  page.Table(PointRows(ParetoFront(c.points)));
  if (!c.layers.empty()) {
    page.Heading("Sensitivity per layer");
    page.Paragraph(
        "Mean KL when one MoE layer alone runs oea with this k0, and in brackets the distinct "
        "experts it then reads.");
    page.Table(LayerRows(c.layers));
  }
  page.Heading("All points");
  page.Paragraph(
      "Cross-entropy, KL and T are teacher-forced; times come from free-running decoding in "
      "mirrored blocks, and the ratio is paired with vanilla's. KL is of the policy to vanilla.");
  page.Table(PointRows(c.points));
  AddRunInfo(page, run);
  RETURN_IF_ERROR(WriteTextFile(dir + "/index.html", page.Render()));
  RETURN_IF_ERROR(WriteTextFile(dir + "/points.csv", RenderCsv(PointRows(c.points))));
  return WriteTextFile(dir + "/calibration.json", CalibrationJson(c).dump(2) + "\n");
}

Status WriteAbReport(const std::string& dir, const RunInfo& run, const AbReport& r,
                     const AbOptions& o) {
  RETURN_IF_ERROR(MakeDirectory(dir));
  HtmlPage page(fmt::format("Carpool A/B: {} against {}", r.candidate.routing, r.baseline.routing));
  page.Paragraph(r.verdict);
  const auto interval = [](const Interval& i) {
    return fmt::format("{:.4f} ({:.4f} to {:.4f})", i.value, i.low, i.high);
  };
  Rows rows = {{"", r.baseline.routing + " (baseline)", r.candidate.routing + " (candidate)"}};
  const auto add = [&](const std::string& name, const auto& cell) {
    rows.push_back({name, cell(r.baseline), cell(r.candidate)});
  };
  add("step us (median)",
      [](const AbSide& s) { return fmt::format("{:.0f}", s.pace.step_us_median); });
  if (r.has_moe_ratio) {
    add("MoE us per layer",
        [](const AbSide& s) { return fmt::format("{:.1f}", s.pace.moe_us_median); });
  }
  add("tokens/s", [](const AbSide& s) { return fmt::format("{:.0f}", s.pace.tokens_per_s); });
  const auto known = [](const std::optional<double>& x) {
    return x ? fmt::format("{:.2f}", *x) : std::string("?");
  };
  add("T, free-running", [&](const AbSide& s) { return known(s.distinct_experts); });
  add("T, teacher-forced",
      [&](const AbSide& s) { return known(s.distinct_experts_teacher_forced); });
  if (r.has_quality) {
    add("cross-entropy",
        [](const AbSide& s) { return fmt::format("{:.4f}", s.quality.cross_entropy); });
  }
  page.Table(rows);
  const Quality& q = r.candidate.quality;
  Rows changes = {{"candidate against baseline", ""},
                  {"step time ratio (95 % interval)", interval(r.step_ratio)}};
  if (r.has_moe_ratio) changes.push_back({"MoE time ratio", interval(r.moe_ratio)});
  if (r.has_quality) {
    const bool sure = r.has_quality_interval;
    changes.push_back({"cross-entropy change", sure ? interval(r.ce_change) : "too few streams"});
    if (sure) changes.push_back({"mean KL", interval(r.kl_mean)});
    changes.push_back(
        {r.kl_is_bound ? "KL mean / p50 / p99 / max (lower bounds)" : "KL mean / p50 / p99 / max",
         fmt::format("{:.5f} / {:.5f} / {:.4f} / {:.3f}", q.kl_mean, q.kl_p50, q.kl_p99,
                     q.kl_max)});
    changes.push_back({"top-1 agreement", fmt::format("{:.4f}", q.top1_agreement)});
  }
  if (r.candidate.assignments > 0) {
    changes.push_back(
        {"changed assignments",
         fmt::format("{} of {}", r.candidate.changed_assignments, r.candidate.assignments)});
  }
  page.Table(changes);
  for (const std::string& note : r.notes) page.Paragraph(note);
  Rows requests = {{"stream", "window", "CE baseline", "CE candidate", "KL mean", "top-1"}};
  for (size_t i = 0; i < q.requests.size(); ++i) {
    const RequestQuality& c = q.requests[i];
    requests.push_back({fmt::format("{}", c.stream), fmt::format("{}", c.window),
                        fmt::format("{:.4f}", r.baseline.quality.requests[i].cross_entropy),
                        fmt::format("{:.4f}", c.cross_entropy), fmt::format("{:.5f}", c.kl),
                        fmt::format("{:.4f}", c.top1_agreement)});
  }
  page.Heading("Per request");
  page.Table(requests);
  AddRunInfo(page, run);
  RETURN_IF_ERROR(WriteTextFile(dir + "/ab.html", page.Render()));
  RETURN_IF_ERROR(WriteTextFile(dir + "/requests.csv", RenderCsv(requests)));
  return WriteTextFile(dir + "/ab.json", AbJson(r, o).dump(2) + "\n");
}

}  // namespace carpool
