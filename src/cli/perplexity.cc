// carpool perplexity: cross-entropy of a text under a routing policy.
#include "lab/perplexity.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/engine_flags.h"

namespace carpool::cli {
namespace {

struct PerplexityFlags {
  EngineFlags engine;
  std::string text;
  size_t batch = 16;
  size_t context = 256;
  size_t windows = 0;
};

Status DoPerplexity(const PerplexityFlags& flags) {
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(flags.engine));
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.engine.common.model));
  const std::string text_path = flags.text.empty() ? dir + "/heldout.txt" : flags.text;
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(text_path));
  PerplexityOptions perplexity{flags.batch, flags.context, flags.windows, options.activations, {}};
  options.max_batch_tokens = std::max<size_t>(options.max_batch_tokens, flags.batch);
  options.max_running = 1;
  ASSIGN_OR_RETURN(auto engine, Engine::Load(dir, options));
  auto tokens = engine->tokenizer().Encode(text);
  if (!tokens) return MakeError(tokens.error().code, "{}: {}", text_path, tokens.error().message);
  ASSIGN_OR_RETURN(auto router,
                   Router::Make(engine->model().config().gate, options.policy,
                                engine->model().config().NumMoeLayers(), options.max_batch_tokens));
  ProgressLine line("scoring");
  perplexity.progress = [&line](size_t done, size_t total) { line.Update(done, total); };
  ASSIGN_OR_RETURN(const PerplexityResult result,
                   Perplexity(engine->model(), engine->tokenizer(), engine->pool(), *router,
                              *tokens, perplexity));
  const std::string routing = PolicyText(router->policy());
  const double moe_us = static_cast<double>(result.stats.router_ns + result.stats.experts_ns) /
                        1e3 / static_cast<double>(result.stats.steps) /
                        static_cast<double>(engine->model().config().NumMoeLayers());
  if (flags.engine.common.json) {
    nlohmann::ordered_json json;
    json["tokens"] = result.tokens;
    json["cross_entropy"] = result.cross_entropy;
    json["bits_per_byte"] = result.bits_per_byte;
    json["distinct_experts_mean"] = result.distinct_experts_mean;
    json["experts_per_row_mean"] = result.experts_per_row_mean;
    json["routing"] = routing;
    json["batch"] = flags.batch;
    json["context"] = flags.context;
    json["activations"] = flags.engine.activations;
    json["seconds"] = result.seconds;
    json["tokens_per_s"] = static_cast<double>(result.tokens) / result.seconds;
    json["moe_us_per_layer"] = moe_us;
    json["sparse_attention_rows"] = result.stats.sparse_attention_rows;
    json["dense_attention_rows"] = result.stats.dense_attention_rows;
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  fmt::print("text            {}\n", text_path);
  fmt::print("routing         {}\n", routing);
  fmt::print("scored          {} tokens, {} sequences of {}, {}\n", HumanCount(result.tokens),
             flags.batch, flags.context, HumanSeconds(result.seconds));
  fmt::print("cross-entropy   {:.4f} nats per token\n", result.cross_entropy);
  fmt::print("bits per byte   {:.4f}\n", result.bits_per_byte);
  fmt::print("experts         {:.2f} distinct of {} per layer and step, {:.2f} per row\n",
             result.distinct_experts_mean, engine->model().config().gate.num_experts,
             result.experts_per_row_mean);
  fmt::print("speed           {:.0f} tokens/s, {:.1f} us per MoE layer and step\n",
             static_cast<double>(result.tokens) / result.seconds, moe_us);
  return {};
}

}  // namespace

void AddPerplexity(CLI::App& root) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command =
      AddCommand(root, "perplexity", "Cross-entropy of a text under a routing policy",
                 [flags] { return DoPerplexity(*flags); });
  AddEngineFlags(*command, flags->engine);
  command->add_option("--text", flags->text, "Text file; default: the model's heldout.txt")
      ->type_name("FILE");
  command->add_option("--batch", flags->batch, "Sequences that advance in lockstep")
      ->type_name("B")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{4096}));
  command->add_option("--context", flags->context, "Tokens fed per window")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command
      ->add_option("--windows", flags->windows, "Only the first K windows of each stream; 0 = all")
      ->type_name("K")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 24));
}

}  // namespace carpool::cli
