// carpool demo: what `make demo` runs. The bundled model writes, then exact routing and OEA are
// compared, here and now.
#include <algorithm>
#include <cmath>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/engine_flags.h"
#include "engine/complete.h"
#include "lab/bench_moe.h"
#include "lab/perplexity.h"
#include "models/model_summary.h"

namespace carpool::cli {
namespace {

constexpr const char* kPrompts[] = {
    "It was a dark and stormy night, and the old man",
    "The captain looked out over the sea and said",
    "\"My dear,\" said she, \"you must know that",
    "In the year of our Lord 1745, there lived in the village of",
    "The detective took the letter from the table and",
    "There was no sound in the forest except",
    "When the war was over, the soldier returned to his mother's house and",
    "The king sent for his three daughters, and asked them",
    "She opened the door of the little room, and there",
    "Of all the sciences, none is so useful to mankind as",
    "The ship struck upon a rock, and in a moment",
    "\"Who are you?\" cried the stranger, drawing his sword.",
    "Early in the morning the two friends set out for",
    "The old house had stood empty for many years, and people said",
    "He was a tall, thin man, with a face that",
    "At last the train stopped, and we",
};
constexpr size_t kTexts = 3;
constexpr size_t kBatch = 16;
constexpr size_t kContext = 256;

struct DemoFlags {
  EngineFlags engine;
  size_t tokens = 48;
  size_t windows = 2;
  bool real_scale = true;
};

void PrintModel(const ModelSummary& s) {
  const ModelConfig& c = s.config;
  fmt::print("Model     {} · {} parameters, {} active per token · {}\n", c.model_type,
             HumanCount(s.parameters), HumanCount(s.active_parameters),
             HumanBytes(static_cast<double>(s.total_bytes)));
  fmt::print(
      "          {} layers, {} of them MoE with {} experts, {} per token; one expert takes {}\n\n",
      c.num_layers, c.NumMoeLayers(), c.gate.num_experts, c.gate.top_k,
      HumanBytes(static_cast<double>(s.expert_bytes)));
}

Status Generate(Engine& engine, const DemoFlags& flags) {
  for (const char* text : {"vanilla", "oea:k0=3"}) {
    ASSIGN_OR_RETURN(auto policy, ParsePolicy(text));
    RETURN_IF_ERROR(engine.SetPolicy(std::move(policy)));
    engine.ClearStats();
    std::vector<Request> requests;
    for (const char* prompt : kPrompts) {
      Request request;
      ASSIGN_OR_RETURN(request.prompt, engine.tokenizer().Encode(prompt));
      request.max_tokens = flags.tokens;
      request.ignore_eos = true;  // all 16 sequences stay in the batch to the end
      request.sampling.temperature = 0.8f;
      request.sampling.top_p = 0.95f;
      request.sampling.seed = requests.size() + 1;
      requests.push_back(std::move(request));
    }
    ASSIGN_OR_RETURN(const auto completions, Complete(engine, std::move(requests), {}));
    fmt::print(
        "── {} prompts as one batch, routing {}: {:.1f} distinct experts per layer and step ──\n",
        std::size(kPrompts), text, DistinctExpertsMean(engine.decode_stats()));
    for (size_t i = 0; i < kTexts; ++i) fmt::print("  {}{}\n", kPrompts[i], completions[i].text);
    fmt::print("\n");
  }
  return {};
}

Status Compare(Engine& engine, const std::string& dir, const EngineOptions& options,
               const DemoFlags& flags) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(dir + "/heldout.txt"));
  ASSIGN_OR_RETURN(const auto tokens, engine.tokenizer().Encode(text));
  const ModelConfig& config = engine.model().config();
  TextTable table({"routing", "distinct experts", "experts/row", "MoE us/layer", "tokens/s",
                   "cross-entropy", "change"});
  double exact = NAN;
  for (const char* policy_text :
       {"vanilla", "oea:k0=5", "oea:k0=4", "oea:k0=3", "oea:k0=2", "topk:k=3"}) {
    ASSIGN_OR_RETURN(auto policy, ParsePolicy(policy_text));
    ASSIGN_OR_RETURN(auto router,
                     Router::Make(config.gate, std::move(policy), config.NumMoeLayers(), kBatch));
    ProgressLine line(policy_text);
    PerplexityOptions perplexity{kBatch, kContext, flags.windows, options.activations,
                                 [&line](size_t done, size_t total) { line.Update(done, total); }};
    ASSIGN_OR_RETURN(
        const PerplexityResult r,
        Perplexity(engine.model(), engine.tokenizer(), engine.pool(), *router, tokens, perplexity));
    if (std::isnan(exact)) exact = r.cross_entropy;
    const auto steps = static_cast<double>(r.stats.steps);
    table.AddRow(
        {policy_text, fmt::format("{:.1f}", r.distinct_experts_mean),
         fmt::format("{:.2f}", r.experts_per_row_mean),
         fmt::format("{:.1f}", static_cast<double>(r.stats.router_ns + r.stats.experts_ns) / 1e3 /
                                   steps / static_cast<double>(config.NumMoeLayers())),
         fmt::format("{:.0f}", static_cast<double>(r.stats.rows) /
                                   (static_cast<double>(r.stats.total_ns) / 1e9)),
         fmt::format("{:.4f}", r.cross_entropy), fmt::format("{:+.4f}", r.cross_entropy - exact)});
  }
  fmt::print(
      "Exact routing against batch-aware routing: {} held-out sequences in lockstep, {} tokens "
      "each, one token of\n"
      "each per step; measured now, {} thread{}.\n\n{}\n",
      kBatch, flags.windows * kContext, options.threads, options.threads == 1 ? "" : "s",
      table.Render());
  fmt::print(
      "The experts of this small model fit in the CPU's cache, so its speed column shows "
      "overheads,\n"
      "not the memory traffic that fewer distinct experts save in a model of real size.\n");
  return {};
}

/// One MoE layer of GLM-5's size with synthetic weights: what the routing saves when experts come
/// from memory.
Status RealScale(const EngineOptions& options) {
  BenchMoeOptions bench;
  ASSIGN_OR_RETURN(bench.shape, FindMoeShape("glm-5"));
  bench.batches = {kBatch};
  bench.threads = options.threads;
  for (const char* text : {"vanilla", "oea:k0=3"}) {
    ASSIGN_OR_RETURN(auto policy, ParsePolicy(text));
    bench.policies.push_back(std::move(policy));
  }
  fmt::print(
      "\nOne MoE layer of GLM-5's size (256 experts of 21.2 MB, synthetic weights), {} rows:\n",
      kBatch);
  std::fflush(stdout);
  ProgressLine line("making 5.4 GB of weights");
  bench.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
  auto report = BenchMoe(bench);
  if (!report) {  // too little memory: the rest of the demo stands
    fmt::print("left out: {}\n", report.error().message);
    return {};
  }
  TextTable table(
      {"routing", "distinct experts", "ms per layer", "GB/s", "of memory bandwidth", "time"});
  for (const BenchMoeRow& r : report->rows) {
    table.AddRow({r.routing, fmt::format("{:.1f}", r.distinct_experts),
                  fmt::format("{:.2f}", r.us_median / 1e3), fmt::format("{:.1f}", r.gbytes_per_s),
                  fmt::format("{:.0f} %", 100 * r.fraction_of_membw),
                  fmt::format("{:.2f}x", r.us_median / report->rows[0].us_median)});
  }
  fmt::print("{}memory bandwidth measured in this run: {:.1f} GB/s\n", table.Render(),
             report->membw_gbytes_per_s);
  return {};
}

Status DoDemo(const DemoFlags& flags) {
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(flags.engine));
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.engine.common.model));
  options.max_running = std::size(kPrompts);
  ASSIGN_OR_RETURN(const ModelSummary summary, SummarizeModel(dir));
  ASSIGN_OR_RETURN(auto engine, Engine::Load(dir, options));
  PrintModel(summary);
  RETURN_IF_ERROR(Generate(*engine, flags));
  RETURN_IF_ERROR(Compare(*engine, dir, options, flags));
  return flags.real_scale ? RealScale(options) : Status();
}

}  // namespace

void AddDemo(CLI::App& root) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App* command =
      AddCommand(root, "demo", "The bundled model writes; exact routing and OEA compared",
                 [flags] { return DoDemo(*flags); });
  AddModel(*command, flags->engine.common);
  AddThreads(*command, flags->engine.common);
  AddActivations(*command, flags->engine);
  command->add_option("--max-tokens", flags->tokens, "Tokens written per prompt")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{4096}));
  command->add_option("--windows", flags->windows, "Windows of 256 tokens scored per sequence")
      ->type_name("K")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_flag("--real-scale,!--no-real-scale", flags->real_scale,
                    "Also measure a MoE layer of GLM-5's size (needs 6 GB)");
}

}  // namespace carpool::cli
