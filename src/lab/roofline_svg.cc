#include "lab/roofline_svg.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace carpool {
namespace {

constexpr double kRoofLeft = 70, kRight = 620, kTop = 50, kBottom = 350;
constexpr const char* kRoofColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                        "#ff7f0e", "#17becf", "#8c564b"};

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string RooflineSvg(const BenchMoeReport& report, const std::string& title,
                        std::span<const ArithmeticRate> arithmetic, double bytes_per_weight) {
  double most_rows = 2.0, top_rate = report.membw_gbytes_per_s;
  for (const auto& r : report.rows) {
    most_rows = std::max(most_rows, r.rows_per_expert);
    top_rate = std::max(top_rate, r.gbytes_per_s);
  }
  top_rate *= 1.1;
  const double octaves = std::log2(std::max(most_rows, 8.0)) * 1.1;
  const auto x = [&](double rows) {
    return kRoofLeft + (kRight - kRoofLeft) * std::log2(std::max(1.0, rows)) / octaves;
  };
  const auto y = [&](double rate) { return kBottom - (kBottom - kTop) * rate / top_rate; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"410\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"800\" height=\"410\" fill=\"white\"/>\n<text x=\"{}\" y=\"25\" "
      "font-size=\"15\">{}</text>\n",
      kRoofLeft, Escape(title));
  for (double rows = 1.0; std::log2(rows) <= octaves; rows *= 2.0) {
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#eee\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        x(rows), kTop, kBottom, kBottom + 18, rows);
  }
  for (int tick = 0; tick <= 4; ++tick) {
    const double rate = top_rate * tick / 4.0;
    svg += fmt::format(
        "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#eee\"/>\n"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.1f}</text>\n",
        kRoofLeft, y(rate), kRight, kRoofLeft - 6, y(rate) + 4, rate);
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">rows per distinct expert</text>\n",
      (kRoofLeft + kRight) / 2, kBottom + 40);
  svg += fmt::format(
      "<text x=\"18\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {0})\">weights "
      "read, GB/s</text>\n",
      (kTop + kBottom) / 2);
  svg += fmt::format(
      "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"black\" "
      "stroke-dasharray=\"6 3\"/>\n"
      "<text x=\"{2}\" y=\"{3:.1f}\" text-anchor=\"end\">memory reads {4:.1f} GB/s</text>\n",
      kRoofLeft, y(report.membw_gbytes_per_s), kRight, y(report.membw_gbytes_per_s) - 6,
      report.membw_gbytes_per_s);
  std::string roof;
  for (const ArithmeticRate& rate : arithmetic) {
    const auto rows = static_cast<double>(rate.rows);
    roof += fmt::format("{:.1f},{:.1f} ", x(rows), y(rate.gmacs * bytes_per_weight / rows));
  }
  svg += fmt::format(
      "<clipPath id=\"plot\"><rect x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{3}\"/></clipPath>\n"
      "<polyline clip-path=\"url(#plot)\" fill=\"none\" stroke=\"black\" points=\"{4}\"/>\n"
      "<line x1=\"640\" y1=\"{5}\" x2=\"655\" y2=\"{5}\" stroke=\"black\"/>"
      "<text x=\"660\" y=\"{6}\">arithmetic alone</text>\n",
      kRoofLeft, kTop, kRight - kRoofLeft, kBottom - kTop, roof, kBottom - 4, kBottom);
  std::map<std::string, size_t> policies;
  for (const auto& r : report.rows) {
    const size_t n = policies.size();
    const auto [it, added] = policies.try_emplace(r.routing, n);
    const char* colour = kRoofColours[it->second % std::size(kRoofColours)];
    if (added) {
      const double at = kTop + 20.0 * static_cast<double>(n);
      svg += fmt::format(
          "<circle cx=\"640\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/><text x=\"652\" "
          "y=\"{:.1f}\">{}</text>\n",
          at, colour, at + 4, Escape(r.routing));
    }
    svg += fmt::format(
        "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"5\" fill=\"{2}\"/><text x=\"{3:.1f}\" "
        "y=\"{4:.1f}\" "
        "font-size=\"10\">B={5}</text>\n",
        x(r.rows_per_expert), y(r.gbytes_per_s), colour, x(r.rows_per_expert) + 7,
        y(r.gbytes_per_s) + 12, r.batch);
  }
  return svg + "</svg>\n";
}

}  // namespace carpool
