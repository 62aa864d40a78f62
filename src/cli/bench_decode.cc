// carpool bench decode: end-to-end decode speed of a model, policies interleaved step by step.
#include "lab/bench_decode.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/bench.h"
#include "cli/bench_json.h"
#include "cli/engine_flags.h"
#include "routing/policy_spec.h"

namespace carpool::cli {
namespace {

struct Flags {
  EngineFlags engine;
  std::string text;
  std::string batch = "1,4,16,64";
  std::string policies = "vanilla,oea:k0=3";
  size_t context = 128;
  size_t steps = 64;
};

Status Run(const Flags& flags) {
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
  bench.context = flags.context;
  bench.steps = flags.steps;
  bench.activations = options.activations;
  ProgressLine line("decoding");
  bench.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
  ASSIGN_OR_RETURN(const auto rows, BenchDecode(engine->model(), engine->pool(), tokens, bench));
  if (flags.engine.common.json) {
    nlohmann::ordered_json json;
    json["rows"] = nlohmann::ordered_json::array();
    for (const BenchRow& r : rows) {
      json["rows"].push_back(BenchRowJson(r));
      json["rows"].back()["moe_us_per_layer"] = r.moe_us_per_layer;
    }
    json["threads"] = options.threads;
    json["activations"] = flags.engine.activations;
    json["context"] = flags.context;
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  TextTable table({"routing", "batch", "distinct experts", "step us (median)", "p10", "p90",
                   "MoE us/layer", "expert GB/s", "tokens/s"});
  for (const BenchRow& r : rows) {
    table.AddRow({r.routing, fmt::format("{}", r.batch), fmt::format("{:.1f}", r.distinct_experts),
                  fmt::format("{:.0f}", r.us_median), fmt::format("{:.0f}", r.us_p10),
                  fmt::format("{:.0f}", r.us_p90), fmt::format("{:.1f}", r.moe_us_per_layer),
                  fmt::format("{:.2f}", r.gbytes_per_s), fmt::format("{:.0f}", r.tokens_per_s)});
  }
  fmt::print("{}", table.Render());
  return {};
}

}  // namespace

void AddBenchDecode(CLI::App& bench) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(bench, "decode", "End-to-end decode speed of a model",
                                 [flags] { return Run(*flags); });
  AddModel(*command, flags->engine.common);
  AddThreads(*command, flags->engine.common);
  AddJson(*command, flags->engine.common);
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
  command->add_option("--context", flags->context, "Tokens already in the cache")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--steps", flags->steps, "Timed steps per row")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
}

}  // namespace carpool::cli
