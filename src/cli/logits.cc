// carpool logits: what the model thinks of given tokens, as numbers for other programs.
#include <memory>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "lab/logits.h"

namespace carpool::cli {
namespace {

struct LogitsFlags {
  EngineFlags engine;
  std::string tokens;
  std::string out;
};

Status DoLogits(const LogitsFlags& flags) {
  ASSIGN_OR_RETURN(const std::string path, ResolveModel(flags.engine.common.model));
  ASSIGN_OR_RETURN(const EngineOptions options, ResolveEngineOptions(flags.engine));
  ThreadPool pool(options.threads);
  ASSIGN_OR_RETURN(const auto model, Model::Load(path, pool, options.load));
  const ModelConfig& config = model->config();
  ASSIGN_OR_RETURN(const auto windows,
                   ReadTokenWindows(flags.tokens, config.vocab_size, config.max_position));
  return WriteLogits(*model, pool, options.activations, windows, flags.out);
}

}  // namespace

void AddLogits(CLI::App& root) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command = AddCommand(root, "logits", "Logits of given tokens as a file of float32 rows",
                                 [flags] { return DoLogits(*flags); });
  AddModel(*command, flags->engine.common);
  AddThreads(*command, flags->engine.common);
  AddActivations(*command, flags->engine);
  command->add_option("--tokens", flags->tokens, "JSON: a list of lists of token ids")
      ->required()
      ->type_name("FILE");
  command->add_option("--out", flags->out, "One row per token, in order")
      ->required()
      ->type_name("FILE");
}

}  // namespace carpool::cli
