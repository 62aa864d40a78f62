#include "lab/moe_time_svg.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/svg_plot.h"

namespace carpool {

std::string MoeTimeSvg(const BenchMoeReport& report, const std::string& title) {
  Plot plot{title, "distinct experts per step (T)", "ms per layer and step", {}};
  for (const BenchMoeRow& row : report.rows) {
    const std::string name = fmt::format("B = {}", row.batch);
    if (plot.series.empty() || plot.series.back().name != name)
      plot.series.push_back({name, {}, false, true});
    plot.series.back().points.push_back({row.distinct_experts, row.us_median / 1e3});
  }
  for (const BenchMoeFit& fit : report.fits) {
    const LinearFit& line = fit.us_per_expert;
    const auto of_batch = std::find_if(
        plot.series.begin(), plot.series.end(),
        [&](const PlotSeries& s) { return s.name == fmt::format("B = {}", fit.batch); });
    const auto [low, high] = std::minmax_element(of_batch->points.begin(), of_batch->points.end());
    PlotSeries fitted{fmt::format("fit, R^2 {:.4f}", line.r2), {}, true, false};
    for (const double t : {low->first, high->first})
      fitted.points.push_back({t, (line.intercept + line.slope * t) / 1e3});
    plot.series.push_back(std::move(fitted));
  }
  return RenderSvg(plot);
}

}  // namespace carpool
