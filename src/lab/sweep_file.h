// Sweep points as JSON: the points file that lets an interrupted sweep resume, and the calibration
// file that `--routing auto` reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/sweep.h"

namespace carpool {

nlohmann::ordered_json PointJson(const SweepPoint& point);
nlohmann::ordered_json LayerPointJson(const LayerPoint& point);

/// What must be equal for points to be comparable: model, text, settings.
using SweepFingerprint = nlohmann::ordered_json;
SweepFingerprint MakeFingerprint(const ModelConfig& model, std::span<const int32_t> text,
                                 const SweepOptions& options);

/// DIR/points.jsonl: the fingerprint on the first line, then one point per line. A last line cut
/// short by an interruption is dropped. No file: no points. Errors: another fingerprint (names what
/// differs), a damaged line (names it).
Result<std::vector<SweepPoint>> LoadPoints(const std::string& path,
                                           const SweepFingerprint& fingerprint);
/// Appends whole lines, flushed; writes the fingerprint first if the file is new.
Status AppendPoints(const std::string& path, const SweepFingerprint& fingerprint,
                    const std::vector<SweepPoint>& points);

/// The same for DIR/layers.jsonl.
Result<std::vector<LayerPoint>> LoadLayerPoints(const std::string& path,
                                                const SweepFingerprint& fingerprint);
Status AppendLayerPoints(const std::string& path, const SweepFingerprint& fingerprint,
                         const std::vector<LayerPoint>& points);

struct Calibration {
  SweepFingerprint fingerprint;
  QualityBudget budget;
  std::vector<SweepPoint> points;       // every measured one
  std::vector<SweepPoint> recommended;  // per batch size, ascending
  LatencyFit fit;
  bool has_fit = false;
  std::vector<LayerPoint> layers;  // sensitivity; empty without --per-layer
};
nlohmann::ordered_json CalibrationJson(const Calibration& calibration);
/// Errors name the file and what is wrong with it.
Result<Calibration> LoadCalibration(const std::string& path);

}  // namespace carpool
