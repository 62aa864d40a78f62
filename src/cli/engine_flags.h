// Flags of the commands that run a model.
#pragma once

#include "cli/command.h"
#include "engine/engine.h"

namespace carpool::cli {

struct EngineFlags {
  CommonFlags common;
  std::string activations = "f32";  // --activations f32|q8
  std::string calibration;          // --calibration FILE, of `--routing auto`
};
/// MODEL, --threads, --routing, --json, --activations.
void AddEngineFlags(CLI::App& command, EngineFlags& flags);
void AddActivations(CLI::App& command, EngineFlags& flags);

Result<Activations> ParseActivations(const std::string& text);
/// --routing, else the environment, else vanilla.
Result<std::shared_ptr<const PolicySpec>> ResolvePolicy(const std::string& routing);

/// Fills threads, activations, policy and a progress line on stderr (terminals only).
Result<EngineOptions> ResolveEngineOptions(const EngineFlags& flags);

/// --calibration, for commands that take `--routing auto`.
void AddCalibration(CLI::App& command, EngineFlags& flags);
/// The policy asked for by --routing or CARPOOL_ROUTING if it is `auto[:max_kl=X]`, else empty.
/// Errors: auto with a bad budget.
Result<std::string> AutoText(const std::string& routing);
/// What `text`, an auto policy, stands for on this model: its calibration is --calibration, else
/// CARPOOL_CALIBRATION, else MODEL/calibration.json.
Result<std::shared_ptr<PolicyChooser>> MakeAuto(const EngineFlags& flags, const std::string& text);
/// As ResolveEngineOptions, for commands that step an Engine: `--routing auto` fills the chooser.
Result<EngineOptions> ResolveSteppingOptions(const EngineFlags& flags);

/// Parses "1,4,16" into positive numbers. `flag` names it in errors.
Result<std::vector<size_t>> ParseSizes(const std::string& flag, const std::string& text);
/// Splits a list of policies at commas that start a new policy: "vanilla,oea:k0=3,p=0.9" -> two.
std::vector<std::string> SplitPolicies(const std::string& text);
/// Splits and parses such a list; errors as ParsePolicy.
Result<std::vector<std::shared_ptr<const PolicySpec>>> ParsePolicies(const std::string& text);

/// One line on stderr that overwrites itself; silent when stderr is no terminal.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label);
  ~ProgressLine();
  void Update(size_t done, size_t total);

 private:
  std::string label_;
  bool terminal_;
  size_t last_percent_ = 101;
};

}  // namespace carpool::cli
