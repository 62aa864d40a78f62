// carpool bench decode: end-to-end decode speed of a model, or of a synthetic stack of layers of a
// real model's size; policies interleaved step by step.
#include "lab/bench_decode.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/bench.h"
#include "cli/bench_json.h"
#include "cli/engine_flags.h"
#include "lab/bench_stack.h"
#include "routing/policy_spec.h"

namespace carpool::cli {
namespace {

struct BenchDecodeFlags {
  EngineFlags engine;
  std::string text;
  std::string batch = "1,4,16,64";
  std::string policies = "vanilla,oea:k0=3";
  std::string contexts = "128";
  size_t steps = 64, prefill = 0, prefill_runs = 3;
  std::string shape;  // empty: MODEL
  std::string format = "nvfp4";
  size_t layers = 0, experts = 0, membw_megabytes = 1024;
};

void PrintStackJson(const BenchStackReport& report, const BenchStackOptions& o,
                    const BenchDecodeFlags& flags) {
  nlohmann::ordered_json json;
  json["rows"] = nlohmann::ordered_json::array();
  for (const BenchStackRow& r : report.rows) {
    const StackTimes& t = r.stack;
    json["rows"].push_back({{"batch", r.batch},
                            {"context", r.context},
                            {"routing", r.routing},
                            {"distinct_experts", r.distinct_experts},
                            {"us_median", r.us_median},
                            {"us_p10", r.us_p10},
                            {"us_p90", r.us_p90},
                            {"gbytes_per_s", r.gbytes_per_s},
                            {"fraction_of_membw", r.fraction_of_membw},
                            {"tokens_per_s", r.tokens_per_s},
                            {"moe_us_per_layer", r.moe_us_per_layer},
                            {"model_us", r.model_us},
                            {"model_gain", r.model_gain},
                            {"moe_gain", r.moe_gain},
                            {"stack_us",
                             {{"projections", t.projections},
                              {"indexer", t.indexer},
                              {"keys", t.keys},
                              {"router", t.router},
                              {"experts", t.experts},
                              {"dense", t.dense},
                              {"head", t.head},
                              {"other", t.other}}}});
  }
  json["membw_gbytes_per_s"] = report.membw_gbytes_per_s;
  json["shape"] = report.shape.name;
  json["dense_layers"] = 1;
  json["moe_layers"] = report.moe_layers;
  json["model_layers"] = report.shape.dense_layers + report.shape.moe_layers;
  json["format"] = flags.format;
  json["dense_format"] = flags.engine.dense_format.empty() ? "bf16" : flags.engine.dense_format;
  json["threads"] = o.threads;
  json["activations"] = flags.engine.activations;
  fmt::print("{}\n", json.dump(2));
}

void PrintStackTable(const BenchStackReport& report) {
  TextTable table({"routing", "batch", "context", "distinct experts", "stack ms (median)", "p10",
                   "p90", "projections", "indexer", "keys", "MoE", "of membw", "model ms",
                   "tokens/s", "gain", "MoE gain"});
  for (const BenchStackRow& r : report.rows) {
    const StackTimes& t = r.stack;
    const auto share = [&](double us) { return fmt::format("{:.1f} %", 100.0 * us / t.Total()); };
    table.AddRow({r.routing, fmt::format("{}", r.batch), fmt::format("{}", r.context),
                  fmt::format("{:.1f}", r.distinct_experts),
                  fmt::format("{:.1f}", r.us_median / 1e3), fmt::format("{:.1f}", r.us_p10 / 1e3),
                  fmt::format("{:.1f}", r.us_p90 / 1e3), share(t.projections), share(t.indexer),
                  share(t.keys), share(t.router + t.experts),
                  fmt::format("{:.2f}", r.fraction_of_membw),
                  fmt::format("{:.0f}", r.model_us / 1e3), fmt::format("{:.2f}", r.tokens_per_s),
                  fmt::format("{:.2f}", r.model_gain), fmt::format("{:.2f}", r.moe_gain)});
  }
  fmt::print(
      "{}measured on 1 dense and {} MoE layers of {}; \"model\" counts every part as often as the "
      "real one has it ({} + {} layers); memory reads {:.2f} GB/s in this run\n",
      table.Render(), report.moe_layers, report.shape.name, report.shape.dense_layers,
      report.shape.moe_layers, report.membw_gbytes_per_s);
}

Status RunStack(const BenchDecodeFlags& flags) {
  if (!flags.engine.common.model.empty() || !flags.text.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--shape makes its own weights and tokens; wanted no MODEL and no --text");
  }
  BenchStackOptions o;
  o.model.moe_layers = flags.layers;
  o.model.experts = flags.experts;
  o.model.seed = flags.engine.common.seed;
  ASSIGN_OR_RETURN(const SyntheticShape known, FindSyntheticShape(flags.shape));
  o.model.shape = known.name;
  ASSIGN_OR_RETURN(o.model.expert_format, ParseWeightFormat(flags.format));
  ASSIGN_OR_RETURN(o.model.load.dense_format, ParseDenseFormat(flags.engine.dense_format));
  ASSIGN_OR_RETURN(o.activations, ParseActivations(flags.engine.activations));
  ASSIGN_OR_RETURN(o.batches, ParseSizes("--batch", flags.batch));
  ASSIGN_OR_RETURN(o.contexts, ParseSizes("--context", flags.contexts));
  ASSIGN_OR_RETURN(o.policies, ParsePolicies(flags.policies));
  ASSIGN_OR_RETURN(o.threads, ResolveThreads(flags.engine.common.threads.has_value(),
                                             flags.engine.common.threads.value_or(0)));
  o.steps = flags.steps;
  o.membw_bytes = flags.membw_megabytes << 20;
  ProgressLine line("decoding");
  o.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
  ASSIGN_OR_RETURN(const BenchStackReport report, BenchStack(o));
  if (flags.engine.common.json) {
    PrintStackJson(report, o, flags);
  } else {
    PrintStackTable(report);
  }
  return {};
}

Status DoBenchDecode(const BenchDecodeFlags& flags) {
  if (!flags.shape.empty()) return RunStack(flags);
  BenchDecodeOptions bench;
  ASSIGN_OR_RETURN(bench.batches, ParseSizes("--batch", flags.batch));
  std::vector<std::string> fixed;
  for (const std::string& text : SplitPolicies(flags.policies)) {
    ASSIGN_OR_RETURN(const auto automatic, ParseAutoPolicy(text));
    if (automatic) {
      ASSIGN_OR_RETURN(auto chooser, MakeAuto(flags.engine, text));
      bench.choosers.push_back(std::move(chooser));
    } else {
      fixed.push_back(text);
    }
  }
  if (!fixed.empty()) {
    ASSIGN_OR_RETURN(bench.policies, ParsePolicies(fmt::format("{}", fmt::join(fixed, ","))));
  }
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(flags.engine));
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.engine.common.model));
  options.max_running = 1;
  ASSIGN_OR_RETURN(auto engine, Engine::Load(dir, options));
  const std::string text_path = flags.text.empty() ? dir + "/heldout.txt" : flags.text;
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(text_path));
  ASSIGN_OR_RETURN(const auto tokens, engine->tokenizer().Encode(text));
  ASSIGN_OR_RETURN(bench.contexts, ParseSizes("--context", flags.contexts));
  bench.membw_bytes = flags.membw_megabytes << 20;
  bench.steps = flags.steps;
  bench.prefill = flags.prefill;
  bench.prefill_runs = flags.prefill_runs;
  bench.activations = options.activations;
  ProgressLine line("decoding");
  bench.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
  ASSIGN_OR_RETURN(const BenchDecodeReport report,
                   BenchDecode(engine->model(), engine->pool(), tokens, bench));
  if (flags.engine.common.json) {
    nlohmann::ordered_json json;
    json["rows"] = nlohmann::ordered_json::array();
    for (const BenchRow& r : report.rows) {
      json["rows"].push_back(BenchRowJson(r));
      json["rows"].back()["context"] = r.context;
      json["rows"].back()["moe_us_per_layer"] = r.moe_us_per_layer;
    }
    for (const PrefillRow& r : report.prefill) {
      json["prefill"].push_back({{"tokens", flags.prefill},
                                 {"routing", r.routing},
                                 {"us_best", r.us_best},
                                 {"us_median", r.us_median}});
    }
    json["membw_gbytes_per_s"] = report.membw_gbytes_per_s;
    json["threads"] = options.threads;
    json["activations"] = flags.engine.activations;
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  TextTable table({"routing", "batch", "context", "distinct experts", "step us (median)", "p10",
                   "p90", "MoE us/layer", "expert GB/s", "of membw", "tokens/s"});
  for (const BenchRow& r : report.rows) {
    table.AddRow({r.routing, fmt::format("{}", r.batch), fmt::format("{}", r.context),
                  fmt::format("{:.1f}", r.distinct_experts), fmt::format("{:.0f}", r.us_median),
                  fmt::format("{:.0f}", r.us_p10), fmt::format("{:.0f}", r.us_p90),
                  fmt::format("{:.1f}", r.moe_us_per_layer), fmt::format("{:.2f}", r.gbytes_per_s),
                  fmt::format("{:.2f}", r.fraction_of_membw),
                  fmt::format("{:.0f}", r.tokens_per_s)});
  }
  fmt::print(
      "{}memory reads {:.2f} GB/s in this run; a small model's experts come from the caches\n",
      table.Render(), report.membw_gbytes_per_s);
  for (const PrefillRow& r : report.prefill) {
    fmt::print("prefill of {} tokens, {}: {:.1f} ms at best, {:.1f} ms in the median\n",
               flags.prefill, r.routing, r.us_best / 1e3, r.us_median / 1e3);
  }
  return {};
}

}  // namespace

void AddBenchDecode(CLI::App& bench) {
  auto flags = std::make_shared<BenchDecodeFlags>();
  CLI::App* command = AddCommand(bench, "decode", "End-to-end decode speed of a model",
                                 [flags] { return DoBenchDecode(*flags); });
  AddModel(*command, flags->engine.common);
  AddThreads(*command, flags->engine.common);
  AddJson(*command, flags->engine.common);
  AddSeed(*command, flags->engine.common);
  AddActivations(*command, flags->engine);
  AddCalibration(*command, flags->engine);
  command
      ->add_option("--text", flags->text,
                   "Text the sequences are cut from; default: the model's heldout.txt")
      ->type_name("FILE");
  command->add_option("--batch", flags->batch, "Batch sizes")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--routing", flags->policies, "Policies to compare")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--context", flags->contexts, "Tokens already in the cache")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--steps", flags->steps, "Timed steps per row")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  command->add_option("--prefill", flags->prefill, "Also time a prompt of this many tokens")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 20));
  command->add_option("--prefill-runs", flags->prefill_runs, "Times the prompt is fed")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 10));
  command
      ->add_option("--shape", flags->shape,
                   "Instead of MODEL: layers of this model's size with random weights (glm-5)")
      ->type_name("S");
  command->add_option("--format", flags->format, "Experts' format, with --shape")
      ->type_name("F")
      ->capture_default_str();
  command->add_option("--layers", flags->layers, "MoE layers, with --shape; 0: as many as fit")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 24));
  command->add_option("--experts", flags->experts, "Experts of a layer, with --shape; 0: all")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 24));
  command
      ->add_option("--membw-megabytes", flags->membw_megabytes,
                   "Memory that the bandwidth is measured on")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
}

}  // namespace carpool::cli
