#include "lab/html_page.h"

#include <fmt/format.h>

#include "lab/svg_plot.h"

namespace carpool {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0;font-size:13px}"
    "td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}h1,h2{font-weight:600}"
    "svg{max-width:100%;height:auto}";

}  // namespace

HtmlPage::HtmlPage(const std::string& title) : title_(title) {
  body_ = "<h1>" + EscapeMarkup(title) + "</h1>\n";
}

void HtmlPage::Heading(const std::string& text) {
  body_ += "<h2>" + EscapeMarkup(text) + "</h2>\n";
}

void HtmlPage::Paragraph(const std::string& text) {
  body_ += "<p>" + EscapeMarkup(text) + "</p>\n";
}

void HtmlPage::Table(const std::vector<std::vector<std::string>>& rows) {
  body_ += "<table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    const char* tag = r == 0 ? "th" : "td";
    body_ += "<tr>";
    for (const std::string& cell : rows[r])
      body_ += fmt::format("<{0}>{1}</{0}>", tag, EscapeMarkup(cell));
    body_ += "</tr>\n";
  }
  body_ += "</table>\n";
}

std::string HtmlPage::Render() const {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>"
      "<style>{}</style></head>\n<body>\n{}</body></html>\n",
      EscapeMarkup(title_), kStyle, body_);
}

std::string RenderCsv(const std::vector<std::vector<std::string>>& rows) {
  std::string csv;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) csv += ',';
      if (row[i].find_first_of(",\"\n") == std::string::npos) {
        csv += row[i];
        continue;
      }
      csv += '"';
      for (const char c : row[i]) csv += c == '"' ? std::string("\"\"") : std::string(1, c);
      csv += '"';
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace carpool
