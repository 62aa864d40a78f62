// carpool sweep: a grid of policies and batch sizes, and the setting to run.
#include "lab/sweep.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "base/text_table.h"
#include "cli/lab_flags.h"
#include "lab/layer_sweep.h"
#include "lab/report.h"

namespace carpool::cli {
namespace {

struct SweepFlags {
  LabFlags lab;
  std::string batches = "4,16,64";
  std::string policies;  // empty = the default grid
  bool per_layer = false;
  std::string out;      // --out DIR: resume from it
  std::string report;   // --report DIR
  double max_ce = 0.0;  // 0 = no limit
  QualityBudget budget;
  SweepOptions sweep;
};

Status ChoosePolicies(SweepFlags& flags, const GateSpec& gate) {
  for (const size_t batch : flags.sweep.batches) {
    const std::string text =
        flags.policies.empty()
            ? fmt::format("{}", fmt::join(DefaultSweepPolicies(gate, batch), ","))
            : flags.policies;
    ASSIGN_OR_RETURN(auto list, ParsePolicies(text));
    flags.sweep.policies.push_back(std::move(list));
  }
  return {};
}

/// Measures the layers' sensitivity and adds the settings it suggests to the sweep's policies.
Result<std::vector<LayerPoint>> AddPerLayerPolicies(SweepFlags& flags, const LabInput& in,
                                                    const SweepFingerprint& fingerprint) {
  SweepOptions& o = flags.sweep;
  std::vector<LayerPoint> known;
  const std::string path = flags.out + "/layers.jsonl";
  if (!flags.out.empty()) {
    ASSIGN_OR_RETURN(known, LoadLayerPoints(path, fingerprint));
    o.on_layers = [path, &fingerprint](const std::vector<LayerPoint>& points) {
      return AppendLayerPoints(path, fingerprint, points);
    };
  }
  ProgressLine line("layers");
  o.progress = [&](size_t done, size_t total) { line.Update(done, total); };
  ASSIGN_OR_RETURN(auto layers, MeasureLayers(in.engine->model(), in.engine->pool(), in.tokens, o,
                                              std::move(known)));
  for (size_t b = 0; b < o.batches.size(); ++b) {
    for (const std::string& text : PerLayerPolicies(layers, o.batches[b], flags.budget.max_kl)) {
      ASSIGN_OR_RETURN(auto policy, ParsePolicy(text));
      o.policies[b].push_back(std::move(policy));
    }
  }
  return layers;
}

void PrintSweep(const Calibration& c) {
  TextTable table({"routing", "batch", "T", "cross-entropy", "KL mean", "KL p99", "top-1",
                   "MoE us/layer", "step us", "step ratio", "95 % interval"});
  for (const SweepPoint& p : c.points) {
    table.AddRow({p.routing, fmt::format("{}", p.batch), fmt::format("{:.2f}", p.distinct_experts),
                  fmt::format("{:.4f}", p.cross_entropy), fmt::format("{:.5f}", p.kl_mean),
                  fmt::format("{:.4f}", p.kl_p99), fmt::format("{:.1f} %", 100 * p.top1_agreement),
                  fmt::format("{:.1f}", p.moe_us), fmt::format("{:.0f}", p.step_us),
                  fmt::format("{:.4f}", p.step_ratio.value),
                  fmt::format("{:.4f} to {:.4f}", p.step_ratio.low, p.step_ratio.high)});
  }
  fmt::print("{}\n", table.Render());
  fmt::print("Pareto front (T, cross-entropy):");
  for (const SweepPoint& p : ParetoFront(c.points)) fmt::print(" {} B={};", p.routing, p.batch);
  fmt::print("\n");
  for (const std::string& line : CompareFamilies(c.points)) fmt::print("{}\n", line);
  if (c.has_fit)
    fmt::print("MoE us per layer = {:.4f} x assignments + {:.3f} x T + {:.1f}, R^2 {:.4f}\n",
               c.fit.a, c.fit.b, c.fit.c, c.fit.r2);
  if (!c.layers.empty()) {
    const auto rows = LayerRows(c.layers);
    TextTable layers(rows.front());
    for (size_t i = 1; i < rows.size(); ++i) layers.AddRow(rows[i]);
    fmt::print("\nMean KL (and T) when one layer alone takes k0:\n{}", layers.Render());
  }
  fmt::print("\nFastest within mean KL {} and p99 KL {}:\n", c.budget.max_kl, c.budget.max_kl_p99);
  for (const SweepPoint& p : c.recommended)
    fmt::print("  B = {:<4} {}  (step ratio {:.4f}, KL mean {:.5f}, p99 {:.4f})\n", p.batch,
               p.routing, p.step_ratio.value, p.kl_mean, p.kl_p99);
}

void PrintSweepJson(const Calibration& c) {
  const auto list = [](const std::vector<SweepPoint>& points) {
    auto json = nlohmann::ordered_json::array();
    for (const SweepPoint& p : points) json.push_back(PointJson(p));
    return json;
  };
  nlohmann::ordered_json json;
  json["points"] = list(c.points);
  json["pareto"] = list(ParetoFront(c.points));
  json["recommended"] = list(c.recommended);
  json["max_kl"] = c.budget.max_kl;
  json["max_kl_p99"] = c.budget.max_kl_p99;
  if (!c.layers.empty()) {
    json["layers"] = nlohmann::ordered_json::array();
    for (const LayerPoint& p : c.layers) json["layers"].push_back(LayerPointJson(p));
  }
  json["comparison"] = CompareFamilies(c.points);
  if (c.has_fit) {
    json["fit"] = {{"a", c.fit.a}, {"b", c.fit.b}, {"c", c.fit.c}, {"r2", c.fit.r2}};
  }
  fmt::print("{}\n", json.dump(2));
}

Status DoSweep(SweepFlags flags) {
  SweepOptions& o = flags.sweep;
  ASSIGN_OR_RETURN(o.batches, ParseSizes("--batch", flags.batches));
  if (flags.max_ce > 0.0) flags.budget.max_ce = flags.max_ce;
  ASSIGN_OR_RETURN(const LabInput in, LoadLabInput(flags.lab));
  const Model& model = in.engine->model();
  RETURN_IF_ERROR(ChoosePolicies(flags, model.config().gate));
  o.seed = flags.lab.engine.common.seed;
  o.pace.activations = in.options.activations;
  const SweepFingerprint fingerprint = MakeFingerprint(model.config(), in.tokens, o);
  std::vector<SweepPoint> known;
  const std::string points_path = flags.out + "/points.jsonl";
  if (!flags.out.empty()) {
    std::error_code ec;
    std::filesystem::create_directories(flags.out, ec);
    if (ec) {
      return MakeError(ErrorCode::kInvalidArgument, "--out: {}: cannot create the folder: {}",
                       flags.out, ec.message());
    }
    ASSIGN_OR_RETURN(known, LoadPoints(points_path, fingerprint));
    if (!known.empty())
      fmt::print(stderr, "carpool: {} points of an earlier run are kept\n", known.size());
    o.on_points = [&](const std::vector<SweepPoint>& points) {
      return AppendPoints(points_path, fingerprint, points);
    };
  }
  Calibration c;
  c.fingerprint = fingerprint;
  c.budget = flags.budget;
  if (flags.per_layer) {
    ASSIGN_OR_RETURN(c.layers, AddPerLayerPolicies(flags, in, fingerprint));
  }
  ProgressLine line("sweeping");
  o.progress = [&](size_t done, size_t total) { line.Update(done, total); };
  ASSIGN_OR_RETURN(c.points, RunSweep(model, in.engine->pool(), in.tokens, o, std::move(known)));
  c.recommended = Recommend(c.points, flags.budget);
  if (const auto fit = FitSweep(c.points)) {
    c.fit = *fit;
    c.has_fit = true;
  }
  if (!flags.out.empty())
    RETURN_IF_ERROR(
        WriteTextFile(flags.out + "/calibration.json", CalibrationJson(c).dump(2) + "\n"));
  if (!flags.report.empty()) {
    RETURN_IF_ERROR(WriteSweepReport(
        flags.report,
        DescribeRun(CommandLine(), in.model_dir, in.text_path, in.options.threads, o.seed), c));
  }
  if (flags.lab.engine.common.json) {
    PrintSweepJson(c);
  } else {
    PrintSweep(c);
  }
  return {};
}

}  // namespace

void AddSweep(CLI::App& root) {
  auto flags = std::make_shared<SweepFlags>();
  CLI::App* command =
      AddCommand(root, "sweep", "Policies and batch sizes: the Pareto front and the setting to run",
                 [flags] { return DoSweep(*flags); });
  AddLabFlags(*command, flags->lab, true);
  SweepOptions& o = flags->sweep;
  o.pace.rounds = 6;
  o.pace.steps = 16;
  command->add_option("--batch", flags->batches, "Batch sizes")
      ->type_name("LIST")
      ->capture_default_str();
  command
      ->add_option("--routing,--policies", flags->policies,
                   "Policies; default: a grid over oea, topk, lynx, cap and xshare")
      ->type_name("LIST");
  command->add_flag("--per-layer", flags->per_layer,
                    "Also measure how sensitive each MoE layer is to k0, and sweep settings with a "
                    "k0 per layer made from that");
  command->add_option("--max-kl", flags->budget.max_kl, "Budget: mean KL to vanilla, nats")
      ->capture_default_str()
      ->check(FiniteRange(0.0, 1e15));
  command
      ->add_option("--max-kl-p99", flags->budget.max_kl_p99,
                   "Budget: KL at the 99th percentile of positions")
      ->capture_default_str()
      ->check(FiniteRange(0.0, 1e15));
  command->add_option("--max-ce", flags->max_ce, "Budget: cross-entropy change, nats; 0 = none")
      ->capture_default_str()
      ->check(FiniteRange(0.0, 1e15));
  command->add_option("--context", o.context, "Tokens of a scored window")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--tokens", o.tokens, "Tokens scored per policy and batch size, about")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--rounds", o.pace.rounds, "Mirrored rounds of timed blocks")
      ->type_name("R")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--steps", o.pace.steps, "Timed steps per block")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--prompt", o.pace.prompt, "Tokens each timed sequence starts from")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command
      ->add_option("--out", flags->out,
                   "Folder for points and calibration; an interrupted sweep resumes from it")
      ->type_name("DIR");
  command->add_option("--report", flags->report, "Folder for an HTML page, plots and CSV")
      ->type_name("DIR");
}

}  // namespace carpool::cli
