// carpool plan: what a model would do on given hardware, and whether sharing experts pays there.
#include "lab/plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text_table.h"
#include "cli/engine_flags.h"
#include "lab/config_shape.h"
#include "lab/plan_here.h"

namespace carpool::cli {
namespace {

struct PlanFlags {
  CommonFlags common;
  std::string model, shape, hardware = "here", format, dense_format = "bf16";
  std::string batch, policies = "vanilla,oea:k0=3";
  std::string activations = "q8", measured_t;
  double bandwidth = 0.0, tops = 0.0, memory = 0.0, seconds = 3.0;
  std::optional<size_t> tile;
  size_t membw_megabytes = 1024;
  bool verify = false;
  size_t context = 4096;
};

Result<Hardware> Describe(const PlanFlags& flags, WeightFormat format) {
  if (flags.bandwidth > 0.0 || flags.tops > 0.0 || flags.memory > 0.0) {
    if (!(flags.bandwidth > 0.0 && flags.tops > 0.0 && flags.memory > 0.0)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "own hardware needs --bandwidth (GB/s), --tops (10^12 operations/s) and "
                       "--memory (GB), all above 0");
    }
    Hardware h;
    h.name = "own hardware";
    h.bandwidth_gbs = flags.bandwidth;
    h.memory_gb = flags.memory;
    h.tops_16bit = flags.tops;
    h.tile_rows = flags.tile.value_or(1);
    h.launch_us = 5;
    h.launches = h.tile_rows > 1 ? 7 : 3;
    return h;
  }
  if (flags.tile.has_value()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "--tile: describes own hardware, with --bandwidth, --tops and --memory; '{}' has its own",
        flags.hardware);
  }
  if (flags.hardware != "here") return FindHardware(flags.hardware);
  ASSIGN_OR_RETURN(const Activations activations, ParseActivations(flags.activations));
  ASSIGN_OR_RETURN(const size_t threads, ResolveThreads(flags.common.threads.has_value(),
                                                        flags.common.threads.value_or(0)));
  return MeasureHardware(threads, format, activations, flags.membw_megabytes << 20);
}

Result<std::vector<double>> ParseNumbers(const std::string& flag, const std::string& text) {
  std::vector<double> numbers;
  size_t start = 0;
  while (start < text.size()) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string part = text.substr(start, comma - start);
    char* end = nullptr;
    numbers.push_back(std::strtod(part.c_str(), &end));
    if (part.empty() || *end != '\0' || !std::isfinite(numbers.back()) || numbers.back() <= 0.0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}: wanted numbers above 0 separated by commas, got '{}'", flag, text);
    }
    start = comma + 1;
  }
  return numbers;
}

void PrintPlanJson(const PlanReport& r, const PlanOptions& o) {
  nlohmann::ordered_json json;
  json["rows"] = nlohmann::ordered_json::array();
  for (const PlanRow& row : r.rows) {
    json["rows"].push_back({{"batch", row.batch},
                            {"routing", row.routing},
                            {"distinct_experts", row.distinct_experts},
                            {"uniform_bound", row.uniform_bound},
                            {"rows_per_expert", row.rows_per_expert},
                            {"bytes", row.bytes},
                            {"bound", row.bound},
                            {"moe_us_per_layer", row.moe_us},
                            {"us", row.us},
                            {"tokens_per_s", row.tokens_per_s},
                            {"speedup", row.speedup}});
  }
  json["shape"] = o.shape.name;
  json["hardware"] = o.hardware.name;
  json["bandwidth_gbytes_per_s"] = o.hardware.bandwidth_gbs;
  json["expert_bytes"] = r.expert_bytes;
  json["weight_bytes"] = r.weight_bytes;
  json["kv_bytes"] = r.kv_bytes;
  json["memory_bytes"] = r.memory_bytes;
  json["fits"] = r.fits;
  json["cache_resident"] = r.cache_resident;
  json["balance_rows_per_expert"] = r.balance_rows;
  json["expert_sentence"] = r.expert_sentence;
  json["sentence"] = r.sentence;
  fmt::print("{}\n", json.dump(2));
}

void PrintPlan(const PlanReport& r, const PlanOptions& o) {
  fmt::print("{} on {}: {} per expert, {} of weights and {} of KV cache, {} of memory: {}\n\n",
             o.shape.name, o.hardware.name, HumanBytes(r.expert_bytes), HumanBytes(r.weight_bytes),
             HumanBytes(r.kv_bytes), HumanBytes(r.memory_bytes), r.fits ? "fits" : "does not fit");
  TextTable table({"routing", "batch", "T", "uniform bound", "rows/expert", "bytes/step", "bound",
                   "MoE us/layer", "step", "tokens/s", "speed-up"});
  for (const PlanRow& row : r.rows) {
    table.AddRow({row.routing, fmt::format("{}", row.batch),
                  fmt::format("{:.1f}", row.distinct_experts),
                  fmt::format("{:.1f}", row.uniform_bound),
                  fmt::format("{:.2f}", row.rows_per_expert), HumanBytes(row.bytes), row.bound,
                  fmt::format("{:.1f}", row.moe_us), HumanSeconds(row.us * 1e-6),
                  fmt::format("{:.1f}", row.tokens_per_s), fmt::format("{:.2f}", row.speedup)});
  }
  fmt::print("{}\n{}\n{}\n", table.Render(), r.expert_sentence, r.sentence);
  if (r.cache_resident)
    fmt::print("A layer's experts fit into the cache of {}.\n", o.hardware.name);
  if (!r.fits) fmt::print("The model does not fit: times are what its memory would give.\n");
}

void PrintVerified(const std::vector<VerifyReport>& reports, double median, double worst) {
  TextTable table({"shape", "routing", "batch", "predicted us", "measured us", "error"});
  for (const VerifyReport& report : reports) {
    for (const VerifyRow& r : report.rows) {
      table.AddRow({r.shape, r.routing, fmt::format("{}", r.batch),
                    fmt::format("{:.0f}", r.predicted_us), fmt::format("{:.0f}", r.measured_us),
                    fmt::format("{:+.1f} %", 100 * r.error())});
    }
  }
  fmt::print("One MoE layer\n{}", table.Render());
  for (const VerifyReport& report : reports) {
    fmt::print(
        "{}: {:.1f} GB/s, {:.0f} GMAC/s at one row and {:.0f} at four; {} layer{} in turn{}\n",
        report.rows.front().shape, report.hardware.bandwidth_gbs,
        Gmacs(report.hardware, WeightFormat::kNVFP4, 1),
        Gmacs(report.hardware, WeightFormat::kNVFP4, 4), report.layers,
        report.layers == 1 ? "" : "s",
        report.cache_resident ? "; FITS INTO THE CACHE: memory is not its limit" : "");
  }
  fmt::print("median error {:.1f} %, worst {:.1f} %\n", 100 * median, 100 * worst);
}

void PrintVerifiedJson(const std::vector<VerifyReport>& reports, double median, double worst) {
  nlohmann::ordered_json json;
  json["rows"] = nlohmann::ordered_json::array();
  json["machine"] = nlohmann::ordered_json::array();
  for (const VerifyReport& report : reports) {
    for (const VerifyRow& r : report.rows) {
      json["rows"].push_back({{"shape", r.shape},
                              {"batch", r.batch},
                              {"routing", r.routing},
                              {"predicted_us", r.predicted_us},
                              {"measured_us", r.measured_us},
                              {"error", r.error()}});
    }
    json["machine"].push_back({{"shape", report.rows.front().shape},
                               {"bandwidth_gbytes_per_s", report.hardware.bandwidth_gbs},
                               {"cache_mb", report.hardware.cache_mb},
                               {"rate_rows", report.hardware.rate_rows},
                               {"rate_gmacs", report.hardware.rate_gmacs},
                               {"layers", report.layers},
                               {"cache_resident", report.cache_resident}});
  }
  json["median_error"] = median;
  json["worst_error"] = worst;
  fmt::print("{}\n", json.dump(2));
}

Status Verify(const PlanFlags& flags, const PlanOptions& plan) {
  VerifyOptions o;
  o.plan = plan;
  ASSIGN_OR_RETURN(o.activations, ParseActivations(flags.activations));
  ASSIGN_OR_RETURN(o.threads, ResolveThreads(flags.common.threads.has_value(),
                                             flags.common.threads.value_or(0)));
  if (flags.hardware != "here" || flags.bandwidth > 0.0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--verify: only what runs here can be measured; leave --hardware out");
  }
  o.seconds = flags.seconds;
  o.membw_bytes = flags.membw_megabytes << 20;
  std::vector<MoeShape> shapes = {plan.shape};
  if (flags.model.empty() && flags.shape.empty()) {
    for (const char* more : {"qwen3-30b", "qwen3-235b"}) {
      ASSIGN_OR_RETURN(shapes.emplace_back(), FindMoeShape(more));
    }
  }
  std::vector<VerifyReport> reports;
  std::vector<double> errors;
  for (const MoeShape& shape : shapes) {
    ProgressLine line("measuring " + shape.name);
    o.plan.shape = shape;
    o.progress = [&](size_t done, size_t total) { line.Update(done, total); };
    ASSIGN_OR_RETURN(VerifyReport report, VerifyPlan(o));
    for (const VerifyRow& r : report.rows) errors.push_back(std::abs(r.error()));
    reports.push_back(std::move(report));
  }
  const double median = Quantile(errors, 0.5), worst = Quantile(errors, 1.0);
  if (flags.common.json) {
    PrintVerifiedJson(reports, median, worst);
  } else {
    PrintVerified(reports, median, worst);
  }
  return {};
}

/// Shape and expert format of MODEL, else of --shape.
Status ChooseShape(const PlanFlags& flags, PlanOptions& o) {
  o.expert_format = WeightFormat::kNVFP4;
  std::error_code ec;
  if (!flags.model.empty() &&
      (std::filesystem::exists(flags.model, ec) || flags.model.find('/') != std::string::npos ||
       flags.model.ends_with(".json"))) {
    ASSIGN_OR_RETURN(ConfigShape config, ShapeFromConfig(flags.model));
    o.shape = std::move(config.shape);
    o.expert_format = config.expert_format;
  } else {
    ASSIGN_OR_RETURN(o.shape, FindMoeShape(!flags.model.empty()   ? flags.model
                                           : !flags.shape.empty() ? flags.shape
                                                                  : "glm-5"));
  }
  if (!flags.format.empty()) {
    ASSIGN_OR_RETURN(o.expert_format, ParseWeightFormat(flags.format));
  }
  return {};
}

Status DoPlan(const PlanFlags& flags) {
  PlanOptions o;
  RETURN_IF_ERROR(ChooseShape(flags, o));
  ASSIGN_OR_RETURN(o.dense_format, ParseWeightFormat(flags.dense_format));
  const char* usual = flags.verify ? "1,2,4,8,16,32" : "1,2,4,8,16,32,64";
  ASSIGN_OR_RETURN(o.batches, ParseSizes("--batch", flags.batch.empty() ? usual : flags.batch));
  if (*std::max_element(o.batches.begin(), o.batches.end()) > 4096)
    return MakeError(ErrorCode::kInvalidArgument, "--batch: wanted at most 4096, got '{}'",
                     flags.batch);
  ASSIGN_OR_RETURN(o.policies, ParsePolicies(flags.policies));
  ASSIGN_OR_RETURN(o.measured_t, ParseNumbers("--measured-t", flags.measured_t));
  o.context = flags.context;
  o.seed = flags.common.seed;
  if (flags.verify) return Verify(flags, o);
  ASSIGN_OR_RETURN(o.hardware, Describe(flags, o.expert_format));
  ASSIGN_OR_RETURN(const PlanReport report, MakePlan(o));
  if (flags.common.json) {
    PrintPlanJson(report, o);
  } else {
    PrintPlan(report, o);
  }
  return {};
}

}  // namespace

void AddPlan(CLI::App& root) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      AddCommand(root, "plan", "Predict T, bytes and speed of a model on given hardware",
                 [flags] { return DoPlan(*flags); });
  AddThreads(*command, flags->common);
  AddSeed(*command, flags->common);
  AddJson(*command, flags->common);
  command->add_option("MODEL", flags->model,
                      "A config.json, a checkpoint's directory or the name of a shape");
  command
      ->add_option("--shape,--preset,--model", flags->shape,
                   "glm-5 (default), qwen3-30b, qwen3-235b, deepseek-v3, demo")
      ->type_name("NAME");
  command
      ->add_option(
          "--hardware", flags->hardware,
          "here (measured now), or: " + fmt::format("{}", fmt::join(HardwareNames(), ", ")))
      ->type_name("NAME")
      ->capture_default_str();
  const auto number = [&](const char* name, double& value, const char* help) {
    command->add_option(name, value, help)->type_name("X")->check(FiniteRange(0.0, 1e15));
  };
  number("--bandwidth", flags->bandwidth, "Own hardware: sustained reads, GB/s");
  number("--tops", flags->tops, "Own hardware: 10^12 operations/s that small matmuls reach");
  number("--memory", flags->memory, "Own hardware: memory, GB");
  command->add_option("--tile", flags->tile, "Own hardware: rows a matmul tile is padded to")
      ->type_name("M")
      ->check(CLI::Range(size_t{1}, size_t{1024}));
  command->add_option("--format", flags->format,
                      "Format of the experts; default: what the config says, else nvfp4");
  command->add_option("--dense-format", flags->dense_format, "Format of everything else")
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "Batch sizes; default: 1 to 64, --verify: 1 to 32")
      ->type_name("LIST");
  command->add_option("--routing", flags->policies, "Policies; speed-ups are against the first")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--context", flags->context, "Cached tokens per sequence")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 28));
  command
      ->add_option("--measured-t", flags->measured_t,
                   "Measured T per batch size and policy instead of independent random routing")
      ->type_name("LIST");
  command->add_option("--activations", flags->activations, "Arithmetic measured here: f32 or q8")
      ->capture_default_str();
  command->add_option("--membw-mb", flags->membw_megabytes, "Memory to measure bandwidth on")
      ->type_name("MB")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{65536}));
  command->add_flag("--verify", flags->verify,
                    "Measure layers here and compare: the shape given, else glm-5, qwen3-30b and "
                    "qwen3-235b");
  command->add_option("--seconds", flags->seconds, "--verify: seconds per batch size")
      ->capture_default_str()
      ->check(FiniteRange(1e-6, 1e15));
}

}  // namespace carpool::cli
