// Pieces of a self-contained HTML page: headings, tables, pictures in line.
#pragma once

#include <string>
#include <vector>

namespace carpool {

class HtmlPage {
 public:
  explicit HtmlPage(const std::string& title);
  void Heading(const std::string& text);
  void Paragraph(const std::string& text);
  /// The first row is the header; the first column is left-aligned.
  void Table(const std::vector<std::vector<std::string>>& rows);
  /// Markup as it is: an <svg>.
  void Raw(const std::string& markup) { body_ += markup; }
  std::string Render() const;

 private:
  std::string title_, body_;
};

/// Rows as comma-separated lines; cells with commas, quotes or line ends are quoted.
std::string RenderCsv(const std::vector<std::vector<std::string>>& rows);

}  // namespace carpool
