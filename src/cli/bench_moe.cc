// carpool bench moe: speed of a MoE layer of a real model's size.
#include "lab/bench_moe.h"

#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "base/text_table.h"
#include "cli/bench.h"
#include "cli/bench_json.h"
#include "cli/engine_flags.h"
#include "lab/moe_time_svg.h"
#include "lab/roofline_svg.h"

namespace carpool::cli {
namespace {

struct BenchMoeFlags {
  CommonFlags common;
  std::string shape = "glm-5", format = "nvfp4", activations = "q8", logits = "random", svg,
              time_svg, assignments;
  std::string batch = "1,16", policies = "vanilla,oea:k0=3";
  size_t layers = 1, experts = 0, membw_megabytes = 1024;
  double seconds = 4.0;
  bool experts_only = false;
};

Result<BenchMoeOptions> Options(const BenchMoeFlags& flags) {
  BenchMoeOptions o;
  ASSIGN_OR_RETURN(o.shape, FindMoeShape(flags.shape));
  ASSIGN_OR_RETURN(o.format, ParseWeightFormat(flags.format));
  ASSIGN_OR_RETURN(o.activations, ParseActivations(flags.activations));
  ASSIGN_OR_RETURN(o.batches, ParseSizes("--batch", flags.batch));
  ASSIGN_OR_RETURN(o.logits, ParseLogitGenerator(flags.logits));
  ASSIGN_OR_RETURN(o.policies, ParsePolicies(flags.policies));
  ASSIGN_OR_RETURN(o.threads, ResolveThreads(flags.common.threads.has_value(),
                                             flags.common.threads.value_or(0)));
  if (flags.experts != 0) o.shape.gate.num_experts = flags.experts;
  o.layers = flags.layers;
  o.seconds = flags.seconds;
  o.membw_bytes = flags.membw_megabytes << 20;
  o.seed = flags.common.seed;
  o.experts_only = flags.experts_only;
  return o;
}

nlohmann::ordered_json StepJson(const BenchMoeStep& step) {
  auto ids = nlohmann::ordered_json::array();
  for (size_t r = 0; r < step.ids.rows; ++r) {
    auto row = nlohmann::ordered_json::array();
    for (const int32_t id : step.ids.RowSpan(r))
      if (id >= 0) row.push_back(id);
    ids.push_back(std::move(row));
  }
  return {
      {"batch", step.batch}, {"routing", step.routing}, {"us", step.us}, {"ids", std::move(ids)}};
}

void PrintBenchMoeJson(const BenchMoeReport& report, const BenchMoeOptions& o,
                       const BenchMoeFlags& flags) {
  nlohmann::ordered_json json;
  json["rows"] = nlohmann::ordered_json::array();
  for (const auto& r : report.rows) {
    json["rows"].push_back(BenchRowJson(r));
    json["rows"].back()["rows_per_expert"] = r.rows_per_expert;
    json["rows"].back()["steps"] = r.steps;
  }
  json["fits"] = nlohmann::ordered_json::array();
  for (const auto& f : report.fits) {
    json["fits"].push_back({{"batch", f.batch},
                            {"us_fixed", f.us_per_expert.intercept},
                            {"us_per_expert", f.us_per_expert.slope},
                            {"r2", f.us_per_expert.r2}});
  }
  json["savings"] = nlohmann::ordered_json::array();
  for (const auto& s : report.savings) {
    json["savings"].push_back({{"batch", s.batch},
                               {"routing", s.routing},
                               {"predicted", s.predicted},
                               {"measured", s.measured}});
  }
  json["membw_gbytes_per_s"] = report.membw_gbytes_per_s;
  json["bytes_per_expert"] = report.bytes_per_expert;
  json["bytes_always"] = report.bytes_always;
  json["shape"] = o.shape.name;
  json["experts"] = o.shape.gate.num_experts;
  json["format"] = flags.format;
  json["activations"] = flags.activations;
  json["logits"] = flags.logits;
  json["layers"] = o.layers;
  json["threads"] = o.threads;
  json["isa"] = report.isa;
  fmt::print("{}\n", json.dump(2));
}

void PrintTable(const BenchMoeReport& report) {
  TextTable table({"routing", "batch", "distinct experts", "rows/expert", "us (median)", "p10",
                   "p90", "GB/s", "of membw", "tokens/s"});
  for (const auto& r : report.rows) {
    table.AddRow({r.routing, fmt::format("{}", r.batch), fmt::format("{:.1f}", r.distinct_experts),
                  fmt::format("{:.2f}", r.rows_per_expert), fmt::format("{:.1f}", r.us_median),
                  fmt::format("{:.1f}", r.us_p10), fmt::format("{:.1f}", r.us_p90),
                  fmt::format("{:.2f}", r.gbytes_per_s), fmt::format("{:.2f}", r.fraction_of_membw),
                  fmt::format("{:.0f}", r.tokens_per_s)});
  }
  fmt::print("{}", table.Render());
  for (const auto& f : report.fits) {
    fmt::print("batch {}: {:.1f} us + {:.2f} us per distinct expert, R2 {:.4f}\n", f.batch,
               f.us_per_expert.intercept, f.us_per_expert.slope, f.us_per_expert.r2);
  }
  for (const auto& s : report.savings) {
    fmt::print(
        "batch {}: {} saves {:.1f} % of the time; the line through the others says {:.1f} %\n",
        s.batch, s.routing, 100 * s.measured, 100 * s.predicted);
  }
  fmt::print(
      "expert {}, router and shared expert {}; kernels {}; memory reads {:.2f} GB/s in this run\n",
      HumanBytes(static_cast<double>(report.bytes_per_expert)),
      HumanBytes(static_cast<double>(report.bytes_always)), report.isa, report.membw_gbytes_per_s);
}

Status DoBenchMoe(const BenchMoeFlags& flags) {
  ASSIGN_OR_RETURN(BenchMoeOptions options, Options(flags));
  ProgressLine line("measuring");
  options.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
  auto steps = nlohmann::ordered_json::array();
  if (!flags.assignments.empty()) {
    options.on_step = [&steps](const BenchMoeStep& step) { steps.push_back(StepJson(step)); };
  }
  ASSIGN_OR_RETURN(const BenchMoeReport report, BenchMoe(options));
  if (!flags.assignments.empty()) {
    const nlohmann::ordered_json file = {{"shape", options.shape.name},
                                         {"experts", options.shape.gate.num_experts},
                                         {"steps", std::move(steps)}};
    RETURN_IF_ERROR(WriteTextFile(flags.assignments, file.dump() + "\n"));
  }
  if (!flags.svg.empty()) {
    ASSIGN_OR_RETURN(const auto arithmetic,
                     MeasureArithmetic(options.threads, options.format, options.activations));
    RETURN_IF_ERROR(
        WriteTextFile(flags.svg, RooflineSvg(report,
                                             fmt::format("{}, {}, {} threads", options.shape.name,
                                                         flags.format, options.threads),
                                             arithmetic, BytesPerWeight(options.format))));
  }
  if (!flags.time_svg.empty()) {
    RETURN_IF_ERROR(WriteTextFile(
        flags.time_svg,
        MoeTimeSvg(report, fmt::format("MoE layer of {}, {}, {} threads", options.shape.name,
                                       flags.format, options.threads))));
  }
  if (flags.common.json) {
    PrintBenchMoeJson(report, options, flags);
  } else {
    PrintTable(report);
  }
  return {};
}

}  // namespace

void AddBenchMoe(CLI::App& bench) {
  auto flags = std::make_shared<BenchMoeFlags>();
  CLI::App* command =
      AddCommand(bench, "moe", "Speed of one MoE layer on synthetic weights of a real model's size",
                 [flags] { return DoBenchMoe(*flags); });
  AddThreads(*command, flags->common);
  AddSeed(*command, flags->common);
  AddJson(*command, flags->common);
  const auto text = [&](const char* name, std::string& value, const char* help, const char* type) {
    command->add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  text("--shape", flags->shape, "glm-5, qwen3-30b, qwen3-235b, deepseek-v3 or demo", "S");
  text("--format", flags->format, "Weights: nvfp4, mxfp4, fp8, q8, bf16 or f32", "F");
  text("--activations", flags->activations, "f32 or q8", "A");
  text("--batch", flags->batch, "Batch sizes", "LIST");
  text("--routing", flags->policies, "Policies to compare", "LIST");
  text("--logits", flags->logits, "Router logits: random, or skewed[:popularity=1,topic=0]", "G");
  command->add_option("--svg", flags->svg, "Write a roofline plot to this file")->type_name("FILE");
  command
      ->add_option("--time-svg", flags->time_svg,
                   "Write a plot of time against distinct experts, with fitted lines")
      ->type_name("FILE");
  command
      ->add_option("--assignments", flags->assignments,
                   "Write the experts every row of every timed step got, and its time, as JSON")
      ->type_name("FILE");
  command->add_flag("--experts-only", flags->experts_only,
                    "Routed experts alone: no shared expert, router and policy not timed");
  command->add_option("--layers", flags->layers, "Layers held in memory; steps go around them")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{256}));
  command
      ->add_option("--experts", flags->experts,
                   "Experts per layer, when the shape's do not fit into memory")
      ->check(CLI::Range(size_t{8}, size_t{1024}));
  command
      ->add_option("--membw-megabytes", flags->membw_megabytes,
                   "Memory the bandwidth is measured on; several times the last-level cache")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{256}, size_t{1} << 20));
  command->add_option("--seconds", flags->seconds, "Timed seconds per batch size")
      ->capture_default_str()
      ->check(FiniteRange(0.0, 3600.0));
}

}  // namespace carpool::cli
