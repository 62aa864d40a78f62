// carpool generate: several prompts decode as one batch.
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/engine_flags.h"
#include "cli/sampling_flags.h"
#include "engine/complete.h"
#include "lab/perplexity.h"
#include "routing/trace.h"

namespace carpool::cli {
namespace {

constexpr size_t kMaxPromptBytes = size_t{16} << 20;  // millions of tokens

struct GenerateFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::vector<std::string> prompts;
  std::string prompt_file;
  size_t max_tokens = 64;
  bool ignore_eos = false;
  size_t context = 0;
  std::string trace;
  TraceDetail trace_detail;
};

Result<std::vector<std::string>> Prompts(const GenerateFlags& flags) {
  std::vector<std::string> prompts = flags.prompts;
  if (!flags.prompt_file.empty()) {
    ASSIGN_OR_RETURN(std::string text, ReadTextFile(flags.prompt_file, kMaxPromptBytes));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    prompts.push_back(std::move(text));
  }
  if (prompts.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "generate: wanted --prompt TEXT (repeatable) or --prompt-file FILE");
  }
  return prompts;
}

nlohmann::ordered_json StatsJson(const Engine& engine, double seconds, size_t generated) {
  const StepStats& decode = engine.decode_stats();
  nlohmann::ordered_json stats;
  stats["routing"] = PolicyText(engine.router().policy());
  if (engine.chooser() != nullptr) {
    const ChooserReport chooser = engine.chooser()->Report();
    stats["auto"] = {
        {"name", chooser.name}, {"changes", chooser.changes}, {"fit_is_live", chooser.fit_is_live}};
  }
  stats["generated_tokens"] = generated;
  stats["prompt_tokens"] = engine.prefill_stats().rows;
  stats["seconds"] = seconds;
  stats["tokens_per_s"] = static_cast<double>(generated) / seconds;
  stats["decode_steps"] = decode.steps;
  stats["distinct_experts_mean"] = DistinctExpertsMean(decode);
  stats["experts_per_row_mean"] = ExpertsPerRowMean(decode);
  stats["expert_bytes"] = decode.expert_bytes + engine.prefill_stats().expert_bytes;
  uint64_t piggybacks = 0, assignments = 0;
  for (const auto& layer : decode.moe) {
    piggybacks += layer.piggybacks;
    assignments += layer.assignments;
  }
  stats["piggyback_rate"] =
      assignments == 0 ? 0.0 : static_cast<double>(piggybacks) / static_cast<double>(assignments);
  stats["sparse_attention_rows"] =
      decode.sparse_attention_rows + engine.prefill_stats().sparse_attention_rows;
  stats["dense_attention_rows"] =
      decode.dense_attention_rows + engine.prefill_stats().dense_attention_rows;
  return stats;
}

Status DoGenerate(const GenerateFlags& flags) {
  ASSIGN_OR_RETURN(const auto prompts, Prompts(flags));
  ASSIGN_OR_RETURN(EngineOptions options, ResolveSteppingOptions(flags.engine));
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.engine.common.model));
  options.max_running = std::max<size_t>(prompts.size(), 1);
  options.max_batch_tokens = std::max(options.max_batch_tokens, prompts.size());
  options.context = flags.context;
  std::unique_ptr<FileTraceSink> trace;
  if (!flags.trace.empty()) {
    ASSIGN_OR_RETURN(trace, FileTraceSink::Open(flags.trace));
  }
  ASSIGN_OR_RETURN(auto engine, Engine::Load(dir, options));
  if (trace != nullptr) engine->set_trace(trace.get(), flags.trace_detail);
  std::vector<Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    auto ids = engine->tokenizer().Encode(prompts[i]);
    if (!ids) return MakeError(ids.error().code, "prompt {}: {}", i + 1, ids.error().message);
    request.prompt = std::move(*ids);
    request.max_tokens = flags.max_tokens;
    request.ignore_eos = flags.ignore_eos;
    ASSIGN_OR_RETURN(request.sampling, ResolveSampling(flags.sampling, engine->model().config()));
    request.sampling.seed += i;
    requests.push_back(std::move(request));
  }
  const bool json = flags.engine.common.json;
  const bool stream = !json && prompts.size() == 1;
  bool started = false;
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const auto completions,
                   Complete(*engine, std::move(requests), [&](size_t, std::string_view text) {
                     if (!stream) return;
                     if (!std::exchange(started, true)) fmt::print("{}", prompts[0]);
                     fmt::print("{}", text);
                     std::fflush(stdout);
                   }));
  if (trace != nullptr) trace->Flush();
  if (trace != nullptr && !trace->ok()) {
    return MakeError(ErrorCode::kInvalidArgument, "--trace: writing '{}' failed", flags.trace);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  size_t generated = 0;
  for (const auto& c : completions) {
    generated += c.token_ids.size();
    if (c.finish == FinishReason::kError)
      return MakeError(ErrorCode::kInternal, "generation failed: {}", c.error);
  }
  const auto stats = StatsJson(*engine, seconds, generated);
  if (json) {
    nlohmann::ordered_json document;
    for (size_t i = 0; i < completions.size(); ++i) {
      document["outputs"].push_back({{"prompt", prompts[i]},
                                     {"text", completions[i].text},
                                     {"token_ids", completions[i].token_ids},
                                     {"finish_reason", FinishReasonName(completions[i].finish)}});
    }
    document["stats"] = stats;
    fmt::print("{}\n",
               document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  }
  if (stream) fmt::print("\n");
  for (size_t i = 0; !stream && i < completions.size(); ++i)
    fmt::print("[{}] {}{}\n\n", i + 1, prompts[i], completions[i].text);
  fmt::print(stderr,
             "\n{} tokens in {} ({:.0f} tokens/s), {} sequence{}, routing {}: {:.1f} distinct "
             "experts of {} per layer and step\n",
             generated, HumanSeconds(seconds), static_cast<double>(generated) / seconds,
             prompts.size(), prompts.size() == 1 ? "" : "s", stats["routing"].get<std::string>(),
             stats["distinct_experts_mean"].get<double>(),
             engine->model().config().gate.num_experts);
  return {};
}

}  // namespace

void AddGenerate(CLI::App& root) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command =
      AddCommand(root, "generate", "Continue one or more prompts, decoded as one batch",
                 [flags] { return DoGenerate(*flags); });
  AddEngineFlags(*command, flags->engine);
  AddCalibration(*command, flags->engine);
  command->add_option("--prompt", flags->prompts, "Text to continue (repeatable)")
      ->type_name("TEXT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--prompt-file", flags->prompt_file, "File whose text is one more prompt")
      ->type_name("FILE");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens to generate per prompt")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--ctx-size", flags->context, "Context in tokens; default: the model's")
      ->type_name("N");
  command->add_option("--trace", flags->trace, "Write the routing of every step (JSON lines)")
      ->type_name("FILE");
  command
      ->add_option("--trace-level", flags->trace_detail.level,
                   "0: the configuration, 1: counters per layer and step, 2: every row")
      ->capture_default_str()
      ->check(CLI::Range(0, kMaxTraceLevel));
  command
      ->add_option("--trace-every", flags->trace_detail.every,
                   "Level 2: write the rows of every N-th step only")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
      ->capture_default_str();
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on past the end-of-text token");
  AddSamplingFlags(*command, flags->sampling);
}

}  // namespace carpool::cli
