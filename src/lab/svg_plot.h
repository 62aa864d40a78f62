// A small plot as SVG text: points, lines, axes with round ticks, a legend.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace carpool {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y
  bool line = true;                               // joined in the order given
  bool markers = true;
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;  // up to 10 have colours of their own
};

/// A standalone <svg> element, 720 x 440, with a white ground. Text is escaped. Values that are not
/// finite are left out; a plot without any point says so.
std::string RenderSvg(const Plot& plot);

/// Round numbers that cover [low, high], about `count` of them, ascending.
std::vector<double> RoundTicks(double low, double high, size_t count);

/// & < > " as entities, for SVG and HTML.
std::string EscapeMarkup(const std::string& text);

}  // namespace carpool
