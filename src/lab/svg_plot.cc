#include "lab/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace carpool {
namespace {

constexpr double kWidth = 720, kHeight = 440;
constexpr double kLeft = 76, kRight = 190, kTop = 40, kBottom = 56;  // the legend stands right
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#6f4e9b",
                                    "#00798c", "#8d6346", "#c05299", "#5c6b73", "#111111"};

/// A linear map of values to pixels, over round ticks.
class Axis {
 public:
  Axis(double low, double high, double from, double to)
      : ticks_(RoundTicks(low, high, 6)), from_(from), to_(to) {}
  double At(double v) const {
    return from_ + (v - ticks_.front()) / (ticks_.back() - ticks_.front()) * (to_ - from_);
  }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  std::vector<double> ticks_;
  double from_, to_;
};

bool Finite(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

std::string Text(double x, double y, const char* anchor, double size, const std::string& text,
                 const std::string& more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\"{}>{}</text>\n", x, y,
      anchor, size, more, EscapeMarkup(text));
}

std::string Grid(const Axis& x, const Axis& y) {
  std::string svg;
  for (const double t : x.ticks()) {
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#e3e3e3\"/>\n", x.At(t),
        kTop, kHeight - kBottom);
    svg += Text(x.At(t), kHeight - kBottom + 18, "middle", 12, fmt::format("{:.6g}", t));
  }
  for (const double t : y.ticks()) {
    svg += fmt::format(
        "<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#e3e3e3\"/>\n", y.At(t),
        kLeft, kWidth - kRight);
    svg += Text(kLeft - 8, y.At(t) + 4, "end", 12, fmt::format("{:.6g}", t));
  }
  return svg;
}

std::string Draw(const PlotSeries& s, const Axis& x, const Axis& y, const char* colour) {
  std::string svg, path;
  for (const auto& p : s.points) {
    if (!Finite(p)) continue;
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x.At(p.first), y.At(p.second));
    if (s.markers) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n",
                         x.At(p.first), y.At(p.second), colour);
    }
  }
  if (s.line && !path.empty()) {
    svg +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n",
                    path, colour);
  }
  return svg;
}

}  // namespace

std::string EscapeMarkup(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> RoundTicks(double low, double high, size_t count) {
  if (!(high > low)) {
    const double half = low == 0.0 ? 1.0 : std::abs(low) * 0.1;
    high = low + half;
    low -= half;
  }
  const double rough = (high - low) / static_cast<double>(std::max<size_t>(count, 1));
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= rough) {
      step = m * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step), last = std::ceil(high / step);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string RenderSvg(const Plot& plot) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  double x_low = kInf, x_high = -kInf, y_low = kInf, y_high = -kInf;
  for (const PlotSeries& s : plot.series) {
    for (const auto& p : s.points) {
      if (!Finite(p)) continue;
      x_low = std::min(x_low, p.first), x_high = std::max(x_high, p.first);
      y_low = std::min(y_low, p.second), y_high = std::max(y_high, p.second);
    }
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"#ffffff\"/>\n",
      kWidth, kHeight);
  svg += Text(kLeft, 24, "start", 15, plot.title, " font-weight=\"bold\"");
  if (x_low > x_high)
    return svg + Text(kWidth / 2, kHeight / 2, "middle", 14, "no points") + "</svg>\n";
  const Axis x(x_low, x_high, kLeft, kWidth - kRight), y(y_low, y_high, kHeight - kBottom, kTop);
  svg += Grid(x, y);
  svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", 13, plot.x_label);
  svg += Text(0, 0, "middle", 13, plot.y_label,
              fmt::format(" transform=\"translate(18 {:.0f}) rotate(-90)\"",
                          (kTop + kHeight - kBottom) / 2));
  double legend = kTop + 8;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    svg += Draw(plot.series[i], x, y, colour);
    svg += fmt::format("<rect x=\"{}\" y=\"{:.0f}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n",
                       kWidth - kRight + 14, legend - 6, colour);
    svg += Text(kWidth - kRight + 34, legend, "start", 12, plot.series[i].name);
    legend += 20;
  }
  return svg + "</svg>\n";
}

}  // namespace carpool
