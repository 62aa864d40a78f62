// carpool quantize: a checkpoint with smaller weights, and what that cost.
#include "lab/quantize.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/engine_flags.h"
#include "lab/perplexity.h"

namespace carpool::cli {
namespace {

struct QuantizeFlags {
  CommonFlags common;
  std::string source, target, experts = "nvfp4", dense = "bf16", keep, text;
  size_t shard_megabytes = 2048;
};

Result<Storage> ParseStorage(const std::string& flag, const std::string& text, bool dense) {
  if (text == "nvfp4") return Storage::kNVFP4;
  if (text == "mxfp4") return Storage::kMXFP4;
  if (text == "q8") return Storage::kInt8;
  if (text == "fp8") return Storage::kF8E4M3;
  if (text == "bf16" && dense) return Storage::kBF16;
  return MakeError(ErrorCode::kInvalidArgument, "{}: wanted nvfp4, mxfp4, q8{}, got '{}'", flag,
                   dense ? ", fp8 or bf16" : " or fp8", text);
}

Result<double> CrossEntropy(const std::string& dir, const std::string& text_path,
                            const QuantizeFlags& flags) {
  EngineOptions options;
  ASSIGN_OR_RETURN(options.threads, ResolveThreads(flags.common.threads.has_value(),
                                                   flags.common.threads.value_or(0)));
  options.max_running = 1;
  ASSIGN_OR_RETURN(options.policy, ParsePolicy("vanilla"));
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(text_path));
  ASSIGN_OR_RETURN(auto engine, Engine::Load(dir, options));
  ASSIGN_OR_RETURN(const auto tokens, engine->tokenizer().Encode(text));
  const auto& config = engine->model().config();
  ASSIGN_OR_RETURN(auto router, Router::Make(config.gate, options.policy, config.NumMoeLayers(),
                                             options.max_batch_tokens));
  ASSIGN_OR_RETURN(const auto result,
                   Perplexity(engine->model(), engine->tokenizer(), engine->pool(), *router, tokens,
                              PerplexityOptions{}));
  return result.cross_entropy;
}

Status DoQuantize(const QuantizeFlags& flags) {
  QuantizeOptions options;
  ASSIGN_OR_RETURN(options.experts, ParseStorage("--experts", flags.experts, false));
  ASSIGN_OR_RETURN(options.dense, ParseStorage("--dense", flags.dense, true));
  options.keep = flags.keep;
  options.shard_bytes = static_cast<uint64_t>(flags.shard_megabytes) << 20;
  ASSIGN_OR_RETURN(const size_t threads, ResolveThreads(flags.common.threads.has_value(),
                                                        flags.common.threads.value_or(0)));
  ASSIGN_OR_RETURN(const std::string source, ResolveModel(flags.source));
  QuantizeReport report;
  {
    ThreadPool pool(threads);
    ProgressLine line("quantizing");
    options.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
    ASSIGN_OR_RETURN(report, QuantizeCheckpoint(source, flags.target, options, pool));
  }
  double before = 0.0, after = 0.0;
  if (!flags.text.empty()) {
    ASSIGN_OR_RETURN(before, CrossEntropy(source, flags.text, flags));
    ASSIGN_OR_RETURN(after, CrossEntropy(flags.target, flags.text, flags));
  }
  if (flags.common.json) {
    nlohmann::ordered_json json;
    json["kinds"] = nlohmann::ordered_json::array();
    for (const auto& k : report.kinds) {
      json["kinds"].push_back({{"part", k.part},
                               {"from", k.from},
                               {"to", k.to},
                               {"tensors", k.tensors},
                               {"bytes_before", k.bytes_before},
                               {"bytes_after", k.bytes_after},
                               {"rmse", k.rmse}});
    }
    json["bytes_before"] = report.bytes_before;
    json["bytes_after"] = report.bytes_after;
    json["shards"] = report.shards;
    json["shards_kept"] = report.shards_kept;
    if (!flags.text.empty())
      json["cross_entropy"] = {{"before", before}, {"after", after}, {"change", after - before}};
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  TextTable table({"part", "from", "to", "tensors", "before", "after", "relative RMSE"});
  for (const auto& k : report.kinds) {
    table.AddRow({k.part, k.from, k.to, HumanCount(k.tensors),
                  HumanBytes(static_cast<double>(k.bytes_before)),
                  HumanBytes(static_cast<double>(k.bytes_after)), fmt::format("{:.4f}", k.rmse)});
  }
  fmt::print("{}{} -> {} in {} shards ({} kept from an interrupted run)\n", table.Render(),
             HumanBytes(static_cast<double>(report.bytes_before)),
             HumanBytes(static_cast<double>(report.bytes_after)), report.shards,
             report.shards_kept);
  if (!flags.text.empty()) {
    fmt::print("cross-entropy {:.4f} -> {:.4f} nats per token ({:+.4f})\n", before, after,
               after - before);
  }
  return {};
}

}  // namespace

void AddQuantize(CLI::App& root) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command = AddCommand(root, "quantize",
                                 "Write a checkpoint with smaller weights; resumes when run again",
                                 [flags] { return DoQuantize(*flags); });
  command->add_option("SRC", flags->source, "Checkpoint directory")->required();
  command->add_option("DST", flags->target, "New directory")->required();
  command->add_option("--experts", flags->experts, "Routed experts: nvfp4, mxfp4, q8 or fp8")
      ->type_name("F")
      ->capture_default_str();
  command
      ->add_option("--dense", flags->dense,
                   "Attention, shared experts, dense MLPs: bf16, q8, nvfp4, mxfp4 or fp8")
      ->type_name("F")
      ->capture_default_str();
  command->add_option("--keep", flags->keep, "Modules this finds stay as they are")
      ->type_name("REGEX");
  command->add_option("--text", flags->text, "Measure the change of cross-entropy on this file")
      ->type_name("FILE");
  command
      ->add_option("--shard-megabytes", flags->shard_megabytes,
                   "Largest shard; also how much an interruption can lose")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 20));
  AddThreads(*command, flags->common);
  AddJson(*command, flags->common);
}

}  // namespace carpool::cli
