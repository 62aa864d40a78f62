// What every sub-command shares: registration, common flags, how an error reaches the user.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"

namespace carpool::cli {

/// Flags that mean the same everywhere. Add the ones a command has with the helpers below.
struct CommonFlags {
  std::string model;                 // MODEL: a checkpoint directory; empty = the bundled model
  std::optional<long long> threads;  // --threads N
  std::string routing;               // --routing POLICY; empty = environment, else vanilla
  uint64_t seed = 0;                 // --seed N
  bool json = false;                 // --json: one JSON document on stdout
};
void AddModel(CLI::App& command, CommonFlags& flags);
void AddThreads(CLI::App& command, CommonFlags& flags);
void AddRouting(CLI::App& command, CommonFlags& flags);
void AddSeed(CLI::App& command, CommonFlags& flags);
void AddJson(CLI::App& command, CommonFlags& flags);

/// The directory `model` names, or the bundled model's: CARPOOL_MODEL, then the source tree, then
/// the install prefix.
Result<std::string> ResolveModel(const std::string& model);

/// A finite number in [low, high]; CLI::Range lets NaN pass.
CLI::Validator FiniteRange(double low, double high);

/// Registers one sub-command: `run` is called after parsing and its error ends the program with the
/// right exit code.
CLI::App* AddCommand(CLI::App& root, const std::string& name, const std::string& description,
                     std::function<Status()> run);

/// 2 for bad arguments or unusable input, 1 for what failed while running.
int ExitCode(const Error& error);

/// THE LIST of sub-commands (all_commands.cc), and each one's registration in the file of its name.
void AddAllCommands(CLI::App& root);
void AddExplain(CLI::App& root);
void AddAb(CLI::App& root);
void AddRoute(CLI::App& root);
void AddBench(CLI::App& root);
void AddConvert(CLI::App& root);
void AddQuantize(CLI::App& root);
void AddChat(CLI::App& root);
void AddDemo(CLI::App& root);
void AddGenerate(CLI::App& root);
void AddInfo(CLI::App& root);
void AddLogits(CLI::App& root);
void AddPerplexity(CLI::App& root);
void AddPlan(CLI::App& root);
void AddSweep(CLI::App& root);
void AddWhatif(CLI::App& root);
void AddServe(CLI::App& root);

/// Parses, runs, prints the error if there is one. Returns the exit code.
int Main(int argc, char** argv);

}  // namespace carpool::cli
