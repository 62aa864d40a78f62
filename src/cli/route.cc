// carpool route: gate and policy on given logits.
#include "cli/command.h"
#include "routing/route_file.h"

namespace carpool::cli {
namespace {

struct RouteFlags {
  CommonFlags common;
  std::string input;
  std::string trace;
  TraceDetail trace_detail{kMaxTraceLevel};
  std::string replay;
};

Status DoRoute(const RouteFlags& flags) {
  RouteOptions options;
  if (flags.common.routing.empty()) {
    ASSIGN_OR_RETURN(options.policy, PolicyFromEnvironment());
  } else {
    ASSIGN_OR_RETURN(options.policy, ParsePolicy(flags.common.routing));
  }
  options.replay = flags.replay;
  options.trace_detail = flags.trace_detail;
  ASSIGN_OR_RETURN(const RouteInput input, LoadRouteInput(flags.input));
  std::unique_ptr<FileTraceSink> sink;
  if (!flags.trace.empty()) {
    ASSIGN_OR_RETURN(sink, FileTraceSink::Open(flags.trace));
    options.trace = sink.get();
  }
  ASSIGN_OR_RETURN(const std::string text,
                   flags.common.json ? RouteJson(input, options) : RouteText(input, options));
  fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
  if (sink != nullptr) {
    sink->Flush();
    if (!sink->ok())
      return MakeError(ErrorCode::kInternal, "trace: writing '{}' failed", flags.trace);
  }
  return {};
}

}  // namespace

void AddRoute(CLI::App& root) {
  auto flags = std::make_shared<RouteFlags>();
  CLI::App* command =
      AddCommand(root, "route", "Route given logits: {config, logits, bias, rows} in a JSON file",
                 [flags] { return DoRoute(*flags); });
  command
      ->add_option("FILE", flags->input,
                   "JSON file {config, logits, bias, rows:[{phase, exact, valid}]}")
      ->required();
  AddRouting(*command, flags->common);
  command->add_option("--trace", flags->trace, "Write a trace (JSON lines)")->type_name("FILE");
  command
      ->add_option("--trace-level", flags->trace_detail.level,
                   "0: configuration, 1: counters, 2: every row")
      ->type_name("N")
      ->check(CLI::Range(0, kMaxTraceLevel))
      ->capture_default_str();
  command
      ->add_option("--trace-every", flags->trace_detail.every,
                   "Level 2: write the rows of every N-th step only")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--replay", flags->replay, "Take the ids from a trace of level 2")
      ->type_name("FILE");
  AddJson(*command, flags->common);
}

}  // namespace carpool::cli
