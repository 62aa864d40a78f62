#include "cli/engine_flags.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <memory>

#include "lab/auto_policy.h"
#include "routing/policy_spec.h"

namespace carpool::cli {

void AddEngineFlags(CLI::App& command, EngineFlags& flags) {
  AddModel(command, flags.common);
  AddThreads(command, flags.common);
  AddRouting(command, flags.common);
  AddJson(command, flags.common);
  AddActivations(command, flags);
}

void AddActivations(CLI::App& command, EngineFlags& flags) {
  command
      .add_option("--activations", flags.activations,
                  "Activations that meet the weights: f32, or q8 (int8 blocks)")
      ->type_name("f32|q8");
}

Result<Activations> ParseActivations(const std::string& text) {
  if (text == "f32") return Activations::kF32;
  if (text == "q8") return Activations::kQ8;
  return MakeError(ErrorCode::kInvalidArgument, "--activations: wanted f32 or q8, got '{}'", text);
}

Result<std::shared_ptr<const PolicySpec>> ResolvePolicy(const std::string& routing) {
  return routing.empty() ? PolicyFromEnvironment() : ParsePolicy(routing);
}

Result<EngineOptions> ResolveEngineOptions(const EngineFlags& flags) {
  EngineOptions options;
  ASSIGN_OR_RETURN(options.threads, ResolveThreads(flags.common.threads.has_value(),
                                                   flags.common.threads.value_or(0)));
  ASSIGN_OR_RETURN(options.activations, ParseActivations(flags.activations));
  ASSIGN_OR_RETURN(options.policy, ResolvePolicy(flags.common.routing));
  options.load.progress = [line = std::make_shared<ProgressLine>("loading")](
                              size_t done, size_t total) { line->Update(done, total); };
  return options;
}

void AddCalibration(CLI::App& command, EngineFlags& flags) {
  command
      .add_option("--calibration", flags.calibration,
                  "Calibration of --routing auto, written by carpool sweep; default: "
                  "CARPOOL_CALIBRATION, else calibration.json beside the model")
      ->type_name("FILE");
}

Result<std::string> AutoText(const std::string& routing) {
  const char* env = std::getenv("CARPOOL_ROUTING");
  const std::string text = !routing.empty() || env == nullptr ? routing : std::string(env);
  ASSIGN_OR_RETURN(const auto automatic, ParseAutoPolicy(text));
  return automatic.has_value() ? text : std::string();
}

Result<std::shared_ptr<PolicyChooser>> MakeAuto(const EngineFlags& flags, const std::string& text) {
  ASSIGN_OR_RETURN(const auto max_kl, ParseAutoPolicy(text));
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.common.model));
  const char* env = std::getenv("CARPOOL_CALIBRATION");
  std::string path = flags.calibration;
  if (path.empty()) path = env != nullptr && *env != '\0' ? env : dir + "/calibration.json";
  auto calibration = LoadCalibration(path);
  if (!calibration && calibration.error().code == ErrorCode::kNotFound) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "policy 'auto': no calibration at {}; write one with carpool sweep --out DIR "
                     "and name it with --calibration",
                     path);
  }
  if (!calibration) return calibration.error();
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  const bool has_budget = text.find(':') != std::string::npos;
  ASSIGN_OR_RETURN(std::shared_ptr<PolicyChooser> chooser,
                   AutoPolicy::Make(std::move(*calibration),
                                    has_budget ? max_kl : std::optional<double>(), config));
  return chooser;
}

Result<EngineOptions> ResolveSteppingOptions(const EngineFlags& flags) {
  ASSIGN_OR_RETURN(const std::string automatic, AutoText(flags.common.routing));
  if (automatic.empty()) return ResolveEngineOptions(flags);
  EngineFlags fixed = flags;
  fixed.common.routing = "vanilla";
  ASSIGN_OR_RETURN(EngineOptions options, ResolveEngineOptions(fixed));
  ASSIGN_OR_RETURN(options.chooser, MakeAuto(flags, automatic));
  return options;
}

Result<std::vector<size_t>> ParseSizes(const std::string& flag, const std::string& text) {
  std::vector<size_t> sizes;
  const char* p = text.data();
  const char* end = p + text.size();
  while (true) {
    size_t n = 0;
    const auto [next, ec] = std::from_chars(p, end, n);
    if (ec != std::errc() || n == 0 || n > 1'000'000 || (next != end && *next != ',')) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}: wanted positive numbers separated by commas, got '{}'", flag, text);
    }
    sizes.push_back(n);
    if (next == end) return sizes;
    p = next + 1;
  }
}

std::vector<std::string> SplitPolicies(const std::string& text) {
  std::vector<std::string> policies;
  size_t start = 0;
  while (start <= text.size()) {
    size_t comma = text.find(',', start);
    const std::string part =
        text.substr(start, comma == std::string::npos ? std::string::npos : comma - start);
    // "p=0.9" continues the policy before it; a policy's name is never followed by '=' directly.
    const size_t colon = part.find(':'), equals = part.find('=');
    const bool continues =
        equals != std::string::npos && (colon == std::string::npos || colon > equals);
    if (continues && !policies.empty()) {
      policies.back() += "," + part;
    } else {
      policies.push_back(part);
    }
    if (comma == std::string::npos) break;
    start = comma + 1;
  }
  return policies;
}

Result<std::vector<std::shared_ptr<const PolicySpec>>> ParsePolicies(const std::string& text) {
  std::vector<std::shared_ptr<const PolicySpec>> policies;
  for (const std::string& one : SplitPolicies(text)) {
    ASSIGN_OR_RETURN(auto policy, ParsePolicy(one));
    policies.push_back(std::move(policy));
  }
  return policies;
}

ProgressLine::ProgressLine(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && last_percent_ <= 100) fmt::print(stderr, "\r\033[K");
}

void ProgressLine::Update(size_t done, size_t total) {
  if (!terminal_ || total == 0) return;
  const size_t percent = done * 100 / total;
  if (percent == last_percent_) return;
  last_percent_ = percent;
  fmt::print(stderr, "\r\033[K{} {:3}%", label_, percent);
  std::fflush(stderr);
}

}  // namespace carpool::cli
