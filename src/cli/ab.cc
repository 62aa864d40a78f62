// carpool ab: a candidate policy against a baseline, speed and quality.
#include "lab/ab.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/text_table.h"
#include "cli/lab_flags.h"
#include "lab/ab_json.h"
#include "lab/report.h"
#include "lab/server_ab.h"
#include "lab/server_process.h"
#include "routing/policy_spec.h"
#include "server/serve_options.h"

namespace carpool::cli {
namespace {

struct AbFlags {
  LabFlags lab;
  std::vector<std::string> positional;  // [MODEL] [BASELINE] CANDIDATE
  std::string baseline, candidate;
  std::string report;                // --report DIR
  std::vector<std::string> servers;  // --server URL_A URL_B
  bool spawn = false, in_turn = false;
  std::string logs = "carpool-ab-logs", api_key, served_model;
  double patience_s = 3600.0;
  AbOptions ab;
};

Error WantedPolicies() {
  return MakeError(ErrorCode::kInvalidArgument,
                   "ab: wanted [MODEL] BASELINE CANDIDATE, e.g. carpool ab vanilla oea:k0=3 (or "
                   "--baseline and --candidate)");
}

/// Sorts the positional arguments into model, baseline and candidate.
Status Arrange(AbFlags& flags) {
  std::vector<std::string> left = flags.positional;
  const size_t named = (flags.baseline.empty() ? 0u : 1u) + (flags.candidate.empty() ? 0u : 1u);
  if (left.size() + named > 3) return WantedPolicies();
  const bool model_first =
      left.size() + named == 3 ||
      (!left.empty() && std::filesystem::is_directory(left.front()) && left.size() + named >= 1);
  if (model_first && !left.empty()) {
    flags.lab.engine.common.model = left.front();
    left.erase(left.begin());
  }
  if (flags.candidate.empty()) {
    if (left.empty()) return WantedPolicies();
    flags.candidate = left.back();
    left.pop_back();
  }
  if (flags.baseline.empty()) {
    flags.baseline = left.empty() ? "vanilla" : left.back();
    if (!left.empty()) left.pop_back();
  }
  return left.empty() ? Status{} : Status{WantedPolicies()};
}

std::string Percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

void PrintQuality(const AbReport& r) {
  const Quality& q = r.candidate.quality;
  if (r.has_quality_interval) {
    fmt::print("cross-entropy change              {:+.5f}  (95 %: {:+.5f} to {:+.5f})\n",
               r.ce_change.value, r.ce_change.low, r.ce_change.high);
    fmt::print("mean KL                           {:.5f}  (95 %: {:.5f} to {:.5f})\n",
               r.kl_mean.value, r.kl_mean.low, r.kl_mean.high);
  }
  fmt::print("KL(candidate || baseline){}        mean {:.5f}, p50 {:.5f}, p99 {:.4f}, max {:.3f}\n",
             r.kl_is_bound ? ">" : " ", q.kl_mean, q.kl_p50, q.kl_p99, q.kl_max);
  fmt::print("top-1 agreement                   {}\n", Percent(q.top1_agreement));
  auto worst = q.requests;
  std::sort(worst.begin(), worst.end(),
            [](const RequestQuality& a, const RequestQuality& b) { return a.kl > b.kl; });
  fmt::print("worst requests by mean KL        ");
  for (size_t i = 0; i < std::min<size_t>(3, worst.size()); ++i)
    fmt::print(" stream {} window {}: {:.5f}{}", worst[i].stream, worst[i].window, worst[i].kl,
               i + 1 < std::min<size_t>(3, worst.size()) ? ";" : "\n");
}

void PrintAb(const AbReport& r, const AbFlags& flags) {
  TextTable table({"", "baseline", "candidate"});
  const auto row = [&](const std::string& name, const auto& cell) {
    table.AddRow({name, cell(r.baseline), cell(r.candidate)});
  };
  row("routing", [](const AbSide& s) { return s.routing; });
  row("step, median", [](const AbSide& s) { return HumanSeconds(s.pace.step_us_median * 1e-6); });
  if (r.has_moe_ratio) {
    row("MoE layer, median",
        [](const AbSide& s) { return HumanSeconds(s.pace.moe_us_median * 1e-6); });
  }
  row("tokens/s", [](const AbSide& s) { return fmt::format("{:.0f}", s.pace.tokens_per_s); });
  const auto known = [](const std::optional<double>& x) {
    return x ? fmt::format("{:.2f}", *x) : std::string("?");
  };
  row("distinct experts T", [&](const AbSide& s) { return known(s.distinct_experts); });
  row("expert bytes per step", [](const AbSide& s) {
    return s.expert_bytes_per_step ? HumanBytes(*s.expert_bytes_per_step) : std::string("?");
  });
  if (r.has_quality) {
    row("cross-entropy",
        [](const AbSide& s) { return fmt::format("{:.4f}", s.quality.cross_entropy); });
    row("T, teacher-forced",
        [&](const AbSide& s) { return known(s.distinct_experts_teacher_forced); });
  }
  fmt::print("{}\n", table.Render());
  const auto interval = [](const Interval& i) {
    return fmt::format("{:.4f}  (95 %: {:.4f} to {:.4f})", i.value, i.low, i.high);
  };
  fmt::print("step time, candidate / baseline   {}\n", interval(r.step_ratio));
  if (r.has_moe_ratio) fmt::print("MoE time, candidate / baseline    {}\n", interval(r.moe_ratio));
  if (r.has_quality) PrintQuality(r);
  if (r.candidate.assignments > 0)
    fmt::print("changed assignments               {} of {}\n",
               HumanCount(r.candidate.changed_assignments), HumanCount(r.candidate.assignments));
  fmt::print(
      "measured                          batch {}, {} tokens scored, {} rounds of 2 blocks of "
      "{} steps\n\n",
      flags.ab.pace.batch, HumanCount(r.candidate.quality.tokens), flags.ab.pace.rounds,
      flags.ab.pace.steps);
  for (const std::string& note : r.notes) fmt::print("{}\n", note);
  fmt::print("{}\n", r.verdict);
}

/// Prints the report, and writes it to --report.
Status Finish(const AbReport& report, const AbFlags& flags, const std::string& model,
              const std::string& text, size_t threads) {
  if (!flags.report.empty()) {
    RETURN_IF_ERROR(WriteAbReport(flags.report,
                                  DescribeRun(CommandLine(), model, text, threads, flags.ab.seed),
                                  report, flags.ab));
  }
  if (flags.lab.engine.common.json) {
    fmt::print("{}\n", AbJson(report, flags.ab).dump(2));
  } else {
    PrintAb(report, flags);
  }
  return {};
}

Status RunHere(AbFlags flags) {
  ASSIGN_OR_RETURN(auto baseline, ParsePolicy(flags.baseline));
  ASSIGN_OR_RETURN(auto candidate, ParsePolicy(flags.candidate));
  ASSIGN_OR_RETURN(const LabInput in, LoadLabInput(flags.lab));
  AbOptions& o = flags.ab;
  o.quality.activations = o.pace.activations = in.options.activations;
  ProgressLine scoring("scoring"), decoding("decoding");
  o.quality.progress = [&](size_t done, size_t total) { scoring.Update(done, total); };
  o.pace.progress = [&](size_t done, size_t total) { decoding.Update(done, total); };
  ASSIGN_OR_RETURN(const AbReport report, RunAb(in.engine->model(), in.engine->pool(), in.tokens,
                                                std::move(baseline), std::move(candidate), o));
  return Finish(report, flags, in.model_dir, in.text_path, in.options.threads);
}

/// The options of a comparison of servers; `model_dir` has the text when --text is not given.
Result<ServerAbOptions> ServerOptions(const AbFlags& flags, const std::string& text_path) {
  ServerAbOptions o;
  o.api_key = flags.api_key;
  o.model = flags.served_model;
  o.ab = flags.ab;
  ASSIGN_OR_RETURN(o.text, ReadTextFile(text_path));
  return o;
}

Result<std::string> TextPath(const AbFlags& flags) {
  if (!flags.lab.text.empty()) return flags.lab.text;
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.lab.engine.common.model));
  return dir + "/heldout.txt";
}

Status RunServers(const AbFlags& flags) {
  if (!flags.positional.empty() || !flags.baseline.empty() || !flags.candidate.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "ab --server: the servers bring their own policies; leave out '{}'",
        flags.positional.empty() ? flags.baseline + flags.candidate : flags.positional.front());
  }
  ASSIGN_OR_RETURN(const ServerUrl a, ParseServerUrl(flags.servers.at(0)));
  ASSIGN_OR_RETURN(const ServerUrl b, ParseServerUrl(flags.servers.at(1)));
  ASSIGN_OR_RETURN(const std::string text_path, TextPath(flags));
  ASSIGN_OR_RETURN(const ServerAbOptions o, ServerOptions(flags, text_path));
  ProgressLine line("comparing");
  ASSIGN_OR_RETURN(const AbReport report, RunServerAb(a, b, o, [&](size_t done, size_t total) {
                     line.Update(done, total);
                   }));
  return Finish(report, flags, a.Text() + " and " + b.Text(), text_path, 0);
}

/// Refuses before anything is started what could not differ or is no policy.
Status CheckPolicies(const AbFlags& flags, const std::string& dir) {
  ASSIGN_OR_RETURN(const auto baseline, ParseServePolicy(flags.baseline));
  ASSIGN_OR_RETURN(const auto candidate, ParseServePolicy(flags.candidate));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  const std::string why = WhyNoDifference(*baseline, *candidate, config.gate, flags.ab.pace.batch);
  if (why.empty()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "'{}' and '{}' cannot differ: {}; choose another candidate",
                   PolicyText(*baseline), PolicyText(*candidate), why);
}

Status RunSpawned(const AbFlags& flags) {
  ASSIGN_OR_RETURN(const std::string dir, ResolveModel(flags.lab.engine.common.model));
  RETURN_IF_ERROR(CheckPolicies(flags, dir));
  ASSIGN_OR_RETURN(const EngineOptions engine, ResolveEngineOptions(flags.lab.engine));
  ASSIGN_OR_RETURN(const std::string text_path, TextPath(flags));
  ASSIGN_OR_RETURN(const ServerAbOptions o, ServerOptions(flags, text_path));
  RETURN_IF_ERROR(CheckServerAb(o));
  std::error_code ec;
  std::filesystem::create_directories(flags.logs, ec);
  if (ec) {
    return MakeError(ErrorCode::kInvalidArgument, "--logs: {}: cannot create the folder: {}",
                     flags.logs, ec.message());
  }
  const auto start = [&](size_t side) {
    const size_t batch = flags.ab.pace.batch;
    const std::vector<std::string> arguments = {dir,
                                                "--routing",
                                                side == 0 ? flags.baseline : flags.candidate,
                                                "--threads",
                                                fmt::format("{}", engine.threads),
                                                "--activations",
                                                flags.lab.engine.activations,
                                                "--max-running-requests",
                                                fmt::format("{}", std::max<size_t>(batch, 64)),
                                                "--max-choices",
                                                fmt::format("{}", std::max<size_t>(batch, 128))};
    return ServerProcess::Start(
        arguments, fmt::format("{}/{}.log", flags.logs, side == 0 ? "baseline" : "candidate"),
        flags.patience_s);
  };
  fmt::print(stderr, "carpool: logs of the servers are kept in {}\n", flags.logs);
  ProgressLine line("comparing");
  const auto progress = [&](size_t done, size_t total) { line.Update(done, total); };
  std::unique_ptr<ServerProcess> a, b;
  ASSIGN_OR_RETURN(a, start(0));
  if (flags.in_turn) {
    const auto next = [&](size_t side) -> Result<ServerUrl> {
      if (side == 1) {
        ASSIGN_OR_RETURN(a, start(1));
      }
      return a->url();
    };
    ASSIGN_OR_RETURN(const AbReport report, RunServerAbInTurn(
                                                next, [&] { a.reset(); }, o, progress));
    return Finish(report, flags, dir, text_path, engine.threads);
  }
  ASSIGN_OR_RETURN(b, start(1));
  ASSIGN_OR_RETURN(const AbReport report, RunServerAb(a->url(), b->url(), o, progress));
  return Finish(report, flags, dir, text_path, engine.threads);
}

Status DoAb(AbFlags flags) {
  if (!flags.report.empty()) {  // before minutes of measuring, not after
    std::error_code ec;
    std::filesystem::create_directories(flags.report, ec);
    if (ec) {
      return MakeError(ErrorCode::kInvalidArgument, "--report: {}: cannot create the folder: {}",
                       flags.report, ec.message());
    }
  }
  flags.ab.seed = flags.ab.pace.seed = flags.lab.engine.common.seed;
  flags.ab.quality.batch = flags.ab.pace.batch;
  if (!flags.servers.empty()) return RunServers(flags);
  RETURN_IF_ERROR(Arrange(flags));
  return flags.spawn ? RunSpawned(flags) : RunHere(std::move(flags));
}

}  // namespace

void AddAb(CLI::App& root) {
  auto flags = std::make_shared<AbFlags>();
  CLI::App* command = AddCommand(
      root, "ab", "A candidate policy against a baseline: speed, quality, and whether it is noise",
      [flags] { return DoAb(*flags); });
  command->add_option("POLICIES", flags->positional,
                      "[MODEL] BASELINE CANDIDATE; one policy alone is compared with vanilla");
  AddLabFlags(*command, flags->lab, false);
  command->add_option("--baseline", flags->baseline, "Baseline policy; default vanilla")
      ->type_name("POLICY");
  command->add_option("--candidate,--routing", flags->candidate, "Candidate policy")
      ->type_name("POLICY");
  command->add_option("--report", flags->report, "Folder for an HTML page, JSON and CSV")
      ->type_name("DIR");
  command
      ->add_option("--server", flags->servers,
                   "Compare two running OpenAI-compatible servers instead: baseline, candidate")
      ->type_name("URL_A URL_B")
      ->expected(2);
  command->add_option("--api-key", flags->api_key, "--server: key of both")->type_name("KEY");
  command
      ->add_option("--served-model", flags->served_model,
                   "--server: model to ask for; default: the first that A serves")
      ->type_name("NAME");
  command->add_flag("--spawn", flags->spawn,
                    "Start `carpool serve` for baseline and candidate, compare, stop them");
  command->add_flag("--in-turn", flags->in_turn,
                    "--spawn: one server after the other (half the memory, no interleaving)");
  command->add_option("--logs", flags->logs, "--spawn: folder for the servers' logs")
      ->type_name("DIR")
      ->capture_default_str();
  command
      ->add_option("--start-timeout", flags->patience_s,
                   "--spawn: seconds a server may take to load")
      ->type_name("S")
      ->capture_default_str()
      ->check(FiniteRange(1e-6, 1e15));
  flags->ab.quality.windows = 2;
  PaceOptions& pace = flags->ab.pace;
  command->add_option("--batch", pace.batch, "Sequences that decode together")
      ->type_name("B")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{4096}));
  command
      ->add_option("--context", flags->ab.quality.context,
                   "Tokens of a scored window (one request)")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--windows", flags->ab.quality.windows, "Scored windows per stream; 0 = all")
      ->type_name("K")
      ->capture_default_str()
      ->check(CLI::Range(size_t{0}, size_t{1} << 24));
  command->add_option("--rounds", pace.rounds, "A B B A rounds of the speed comparison")
      ->type_name("R")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--prompt", pace.prompt, "Tokens each timed sequence starts from")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command->add_option("--steps", pace.steps, "Timed steps per block")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 24));
  command
      ->add_option("--min-effect", flags->ab.min_effect,
                   "Smallest change of step time that can win")
      ->type_name("SHARE")
      ->capture_default_str()
      ->check(FiniteRange(0.0, 1.0));
}

}  // namespace carpool::cli
