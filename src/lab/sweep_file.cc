#include "lab/sweep_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "base/output_file.h"

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "carpool-calibration-1";

uint64_t Fnv(std::span<const int32_t> tokens) {
  uint64_t hash = 1469598103934665603ull;
  for (const int32_t t : tokens) hash = (hash ^ static_cast<uint32_t>(t)) * 1099511628211ull;
  return hash;
}

double Number(const OrderedJson& j, const char* key) {
  const double value = j.at(key).get<double>();
  if (!std::isfinite(value)) throw std::runtime_error(std::string(key) + " is no number");
  return value;
}

/// Throws what nlohmann throws, or runtime_error.
SweepPoint PointFromJson(const OrderedJson& j) {
  SweepPoint p;
  p.batch = j.at("batch").get<size_t>();
  p.routing = j.at("routing").get<std::string>();
  p.tokens = j.at("tokens").get<size_t>();
  p.cross_entropy = Number(j, "cross_entropy");
  p.ce_change = Number(j, "cross_entropy_change");
  p.kl_mean = Number(j, "kl_mean");
  p.kl_p99 = Number(j, "kl_p99");
  p.kl_worst_request = Number(j, "kl_worst_request");
  p.top1_agreement = Number(j, "top1_agreement");
  p.distinct_experts = Number(j, "distinct_experts");
  p.experts_per_row = Number(j, "experts_per_row");
  p.assignments = Number(j, "assignments");
  p.distinct_experts_free = Number(j, "distinct_experts_free_running");
  p.bytes_per_step = Number(j, "expert_bytes_per_step");
  p.step_us = Number(j, "step_us");
  p.moe_us = Number(j, "moe_us_per_layer");
  p.tokens_per_s = Number(j, "tokens_per_s");
  const OrderedJson& ratio = j.at("step_ratio");
  p.step_ratio = {Number(ratio, "value"), ratio.at("ci95").at(0).get<double>(),
                  ratio.at("ci95").at(1).get<double>()};
  if (p.batch == 0) throw std::runtime_error("batch is 0");
  if (const auto policy = ParsePolicy(p.routing); !policy)
    throw std::runtime_error(policy.error().message);
  return p;
}

/// Throws what nlohmann throws, or runtime_error.
LayerPoint LayerPointFromJson(const OrderedJson& j) {
  LayerPoint p;
  p.batch = j.at("batch").get<size_t>();
  p.layer = j.at("layer").get<size_t>();
  p.k0 = j.at("k0").get<size_t>();
  p.kl_mean = Number(j, "kl_mean");
  p.distinct_experts = Number(j, "distinct_experts");
  return p;
}

OrderedJson PointsJson(const std::vector<SweepPoint>& points) {
  OrderedJson list = OrderedJson::array();
  for (const SweepPoint& p : points) list.push_back(PointJson(p));
  return list;
}

template <typename Point>
Result<std::vector<Point>> LoadLines(const std::string& path, const SweepFingerprint& fingerprint,
                                     Point (*from_json)(const OrderedJson&)) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return std::vector<Point>{};
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::vector<Point> points;
  size_t start = 0, number = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    ++number;
    try {
      const OrderedJson json = OrderedJson::parse(line);
      if (number > 1) {
        points.push_back(from_json(json));
        continue;
      }
      for (const auto& [key, value] : fingerprint.items()) {
        if (json.at(key) == value) continue;
        return MakeError(ErrorCode::kInvalidArgument,
                         "{}: was measured with {} = {}, this sweep has {}; choose another --out "
                         "or remove the file",
                         path, key, json.at(key).dump(), value.dump());
      }
    } catch (const std::exception& e) {
      return MakeError(ErrorCode::kCorrupt, "{}: line {} is damaged ({}); remove the file", path,
                       number, e.what());
    }
  }
  return points;
}

template <typename Point>
Status AppendLines(const std::string& path, const SweepFingerprint& fingerprint,
                   const std::vector<Point>& points, OrderedJson (*to_json)(const Point&)) {
  // What an interruption cut short is replaced, not continued.
  std::string text;
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) {
    ASSIGN_OR_RETURN(text, ReadTextFile(path));
    text.resize(text.find_last_of('\n') == std::string::npos ? 0 : text.find_last_of('\n') + 1);
  }
  if (text.empty()) text = fingerprint.dump() + "\n";
  for (const Point& p : points) text += to_json(p).dump() + "\n";
  return WriteTextFile(path, text);
}

}  // namespace

OrderedJson PointJson(const SweepPoint& p) {
  return {{"batch", p.batch},
          {"routing", p.routing},
          {"tokens", p.tokens},
          {"cross_entropy", p.cross_entropy},
          {"cross_entropy_change", p.ce_change},
          {"kl_mean", p.kl_mean},
          {"kl_p99", p.kl_p99},
          {"kl_worst_request", p.kl_worst_request},
          {"top1_agreement", p.top1_agreement},
          {"distinct_experts", p.distinct_experts},
          {"experts_per_row", p.experts_per_row},
          {"assignments", p.assignments},
          {"distinct_experts_free_running", p.distinct_experts_free},
          {"expert_bytes_per_step", p.bytes_per_step},
          {"step_us", p.step_us},
          {"moe_us_per_layer", p.moe_us},
          {"tokens_per_s", p.tokens_per_s},
          {"step_ratio",
           {{"value", p.step_ratio.value},
            {"ci95", OrderedJson::array({p.step_ratio.low, p.step_ratio.high})}}}};
}

SweepFingerprint MakeFingerprint(const ModelConfig& model, std::span<const int32_t> text,
                                 const SweepOptions& o) {
  return {{"model_type", model.model_type},
          {"layers", model.num_layers},
          {"hidden", model.hidden},
          {"experts", model.gate.num_experts},
          {"top_k", model.gate.top_k},
          {"text", fmt::format("{:016x}", Fnv(text))},
          {"context", o.context},
          {"tokens", o.tokens},
          {"activations", o.pace.activations == Activations::kF32 ? "f32" : "q8"},
          {"rounds", o.pace.rounds},
          {"steps", o.pace.steps},
          {"prompt", o.pace.prompt},
          {"seed", o.seed}};
}

OrderedJson LayerPointJson(const LayerPoint& p) {
  return {{"batch", p.batch},
          {"layer", p.layer},
          {"k0", p.k0},
          {"kl_mean", p.kl_mean},
          {"distinct_experts", p.distinct_experts}};
}

Result<std::vector<SweepPoint>> LoadPoints(const std::string& path,
                                           const SweepFingerprint& fingerprint) {
  return LoadLines(path, fingerprint, &PointFromJson);
}

Status AppendPoints(const std::string& path, const SweepFingerprint& fingerprint,
                    const std::vector<SweepPoint>& points) {
  return AppendLines(path, fingerprint, points, &PointJson);
}

Result<std::vector<LayerPoint>> LoadLayerPoints(const std::string& path,
                                                const SweepFingerprint& fingerprint) {
  return LoadLines(path, fingerprint, &LayerPointFromJson);
}

Status AppendLayerPoints(const std::string& path, const SweepFingerprint& fingerprint,
                         const std::vector<LayerPoint>& points) {
  return AppendLines(path, fingerprint, points, &LayerPointJson);
}

OrderedJson CalibrationJson(const Calibration& c) {
  OrderedJson json;
  json["format"] = kFormat;
  json["fingerprint"] = c.fingerprint;
  json["max_kl"] = c.budget.max_kl;
  json["max_kl_p99"] = c.budget.max_kl_p99;
  json["max_ce"] =
      std::isfinite(c.budget.max_ce) ? OrderedJson(c.budget.max_ce) : OrderedJson(nullptr);
  if (c.has_fit) json["fit"] = {{"a", c.fit.a}, {"b", c.fit.b}, {"c", c.fit.c}, {"r2", c.fit.r2}};
  json["recommended"] = PointsJson(c.recommended);
  json["points"] = PointsJson(c.points);
  if (!c.layers.empty()) {
    json["layers"] = OrderedJson::array();
    for (const LayerPoint& p : c.layers) json["layers"].push_back(LayerPointJson(p));
  }
  return json;
}

Result<Calibration> LoadCalibration(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  try {
    const OrderedJson json = OrderedJson::parse(text);
    if (json.at("format") != kFormat)
      throw std::runtime_error("format is not " + std::string(kFormat));
    Calibration c;
    c.fingerprint = json.at("fingerprint");
    c.budget.max_kl = Number(json, "max_kl");
    c.budget.max_kl_p99 = Number(json, "max_kl_p99");
    if (!json.at("max_ce").is_null()) c.budget.max_ce = Number(json, "max_ce");
    for (const OrderedJson& p : json.at("points")) c.points.push_back(PointFromJson(p));
    for (const OrderedJson& p : json.at("recommended")) c.recommended.push_back(PointFromJson(p));
    if (json.contains("layers"))
      for (const OrderedJson& p : json.at("layers")) c.layers.push_back(LayerPointFromJson(p));
    if (c.recommended.empty()) throw std::runtime_error("it recommends nothing");
    if (json.contains("fit")) {
      const OrderedJson& f = json.at("fit");
      c.fit = {Number(f, "a"), Number(f, "b"), Number(f, "c"), Number(f, "r2")};
      c.has_fit = true;
    }
    return c;
  } catch (const std::exception& e) {
    return MakeError(ErrorCode::kCorrupt,
                     "{}: not a usable calibration ({}); write one with carpool sweep --out DIR",
                     path, e.what());
  }
}

}  // namespace carpool
