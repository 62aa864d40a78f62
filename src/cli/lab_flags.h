// Flags and set-up of the commands that measure policies on a model and a text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/engine_flags.h"

namespace carpool::cli {

struct LabFlags {
  EngineFlags engine;
  std::string text;  // --text FILE; default: the model's heldout.txt
};
/// MODEL, --threads, --json, --activations, --seed, --text. MODEL only when `positional`.
void AddLabFlags(CLI::App& command, LabFlags& flags, bool positional);

/// A loaded model and the tokens of the text.
struct LabInput {
  EngineOptions options;
  std::string model_dir, text_path;
  std::unique_ptr<Engine> engine;
  std::vector<int32_t> tokens;
};
Result<LabInput> LoadLabInput(const LabFlags& flags);

/// The command that started this process, for reports.
std::string CommandLine();

}  // namespace carpool::cli
