// carpool explain: which routing kernel an engine would take for a config, predicate by predicate.
#include "routing/explain.h"

#include "base/mapped_file.h"
#include "cli/command.h"

namespace carpool::cli {
namespace {

struct ExplainFlags {
  CommonFlags common;
  std::string preset;
  std::string config;
  std::string engine = "sglang-2026-02";
  DispatchCase given;
  std::vector<std::string> set;
  std::vector<std::string> diff;
  bool all = false;
};

Status ParseSet(const std::vector<std::string>& pairs, DispatchCase& c) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
    if (value != "0" && value != "1") {
      return MakeError(ErrorCode::kInvalidArgument, "--set: wanted NAME=0 or NAME=1, got '{}'",
                       pair);
    }
    c.flags.emplace_back(pair.substr(0, equals), value == "1");
  }
  return {};
}

void PrintExplain(const std::string& text) {
  fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
}

Status DoExplain(const ExplainFlags& flags) {
  DispatchCase c = flags.given;
  RETURN_IF_ERROR(ParseSet(flags.set, c));
  RETURN_IF_ERROR(CheckDispatchCase(c));
  const bool json = flags.common.json;
  if (flags.all) {
    PrintExplain(json ? ExplainAllJson(c) : ExplainAllText(c));
    return {};
  }
  if (flags.preset.empty() == flags.config.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "wanted one of --preset NAME, --config FILE or --all");
  }
  if (flags.config.empty()) {
    ASSIGN_OR_RETURN(c.config, PresetConfig(flags.preset));
  } else {
    ASSIGN_OR_RETURN(c.config, LoadRoutingConfig(flags.config));
  }
  if (!flags.diff.empty()) {
    ASSIGN_OR_RETURN(const DispatchProfile* a, FindDispatchProfile(flags.diff[0]));
    ASSIGN_OR_RETURN(const DispatchProfile* b, FindDispatchProfile(flags.diff[1]));
    const DispatchLog left = Dispatch(*a, c), right = Dispatch(*b, c);
    PrintExplain(json ? DiffJson(left, right, c) : DiffText(left, right, c));
    return {};
  }
  ASSIGN_OR_RETURN(const DispatchProfile* profile, FindDispatchProfile(flags.engine));
  const DispatchLog log = Dispatch(*profile, c);
  PrintExplain(json ? ExplainJson(log, c) : ExplainText(log, c));
  return {};
}

}  // namespace

void AddExplain(CLI::App& root) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* command =
      AddCommand(root, "explain", "Which routing kernel an engine takes for a model, and why",
                 [flags] { return DoExplain(*flags); });
  command
      ->add_option("--preset", flags->preset, "A known model, e.g. glm-5, deepseek-v3, qwen3-30b")
      ->type_name("NAME");
  command->add_option("--config", flags->config, "A model's config.json")->type_name("FILE");
  command->add_option("--engine", flags->engine, "Dispatch profile")
      ->type_name("PROFILE")
      ->capture_default_str();
  command
      ->add_option("--fused-shared", flags->given.fused_shared,
                   "Shared experts carried as extra routed slots")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--device", flags->given.device,
                   "cuda, hip, cpu, xpu or musa; default: the profile's own")
      ->type_name("NAME");
  command->add_option("--tokens", flags->given.tokens, "Rows of the step")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command
      ->add_option("--dtype", flags->given.dtype,
                   "Number format of the router logits: bf16, fp16 or fp32")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--set", flags->set,
                   "A fact about the process, e.g. flashinfer=0, aiter=1, amx=0; repeatable")
      ->type_name("NAME=0|1");
  command->add_option("--diff", flags->diff, "Where two profiles part")
      ->type_name("A B")
      ->expected(2);
  command->add_flag("--all", flags->all, "Every preset on every profile");
  AddJson(*command, flags->common);
}

}  // namespace carpool::cli
