// The lab's report: one HTML page without any outside file, and the same numbers as CSV and JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "lab/ab.h"
#include "lab/sweep_file.h"

namespace carpool {

/// Where numbers come from: printed on the page.
struct RunInfo {
  std::string command;                                     // as it was typed
  std::string model;                                       // directory
  std::string text;                                        // file
  std::vector<std::pair<std::string, std::string>> facts;  // machine, versions, settings
};
/// Fills in machine, threads, versions, git commit of the source tree, date and seed.
RunInfo DescribeRun(const std::string& command, const std::string& model, const std::string& text,
                    size_t threads, uint64_t seed);

/// Cross-entropy against T, one curve per policy family, of one batch size.
std::string CrossEntropyPlot(const std::vector<SweepPoint>& points, size_t batch);
/// MoE time against T over all batch sizes, with the fitted model's values.
std::string MoeTimePlot(const std::vector<SweepPoint>& points, const LatencyFit* fit);

/// Who has the lowest cross-entropy at equal T: one sentence per batch size and rival of oea, from
/// straight lines between measured points.
std::vector<std::string> CompareFamilies(const std::vector<SweepPoint>& points);

/// A header and one row per (batch size, layer): mean KL, and T in brackets, by k0.
std::vector<std::vector<std::string>> LayerRows(const std::vector<LayerPoint>& layers);

/// Writes DIR/index.html, DIR/points.csv, DIR/calibration.json and the plots as DIR/*.svg. Creates
/// DIR.
Status WriteSweepReport(const std::string& dir, const RunInfo& run, const Calibration& calibration);

/// Writes DIR/ab.html, DIR/ab.json and DIR/requests.csv.
Status WriteAbReport(const std::string& dir, const RunInfo& run, const AbReport& report,
                     const AbOptions& options);

}  // namespace carpool
