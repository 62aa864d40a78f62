#include "cli/lab_flags.h"

#include <algorithm>

#include "base/mapped_file.h"

namespace carpool::cli {

void AddLabFlags(CLI::App& command, LabFlags& flags, bool positional) {
  if (positional) AddModel(command, flags.engine.common);
  AddThreads(command, flags.engine.common);
  AddSeed(command, flags.engine.common);
  AddJson(command, flags.engine.common);
  AddActivations(command, flags.engine);
  command.add_option("--text", flags.text, "Text file; default: the model's heldout.txt")
      ->type_name("FILE");
}

Result<LabInput> LoadLabInput(const LabFlags& flags) {
  LabInput in;
  ASSIGN_OR_RETURN(in.options, ResolveEngineOptions(flags.engine));
  ASSIGN_OR_RETURN(in.model_dir, ResolveModel(flags.engine.common.model));
  in.text_path = flags.text.empty() ? in.model_dir + "/heldout.txt" : flags.text;
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(in.text_path));
  in.options.max_running = 1;
  ASSIGN_OR_RETURN(in.engine, Engine::Load(in.model_dir, in.options));
  auto tokens = in.engine->tokenizer().Encode(text);
  if (!tokens)
    return MakeError(tokens.error().code, "{}: {}", in.text_path, tokens.error().message);
  in.tokens = std::move(tokens).value();
  return in;
}

std::string CommandLine() {
  auto text = ReadTextFile("/proc/self/cmdline");
  if (!text) return {};
  std::string line = std::move(text).value();
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::replace(line.begin(), line.end(), '\0', ' ');
  return line;
}

}  // namespace carpool::cli
