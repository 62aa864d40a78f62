// carpool ab: a candidate policy against a baseline, speed and quality.
#include "lab/ab.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/text_table.h"
#include "cli/lab_flags.h"
#include "lab/ab_json.h"
#include "lab/report.h"

namespace carpool::cli {
namespace {

struct Flags {
  LabFlags lab;
  std::vector<std::string> positional;  // [MODEL] [BASELINE] CANDIDATE
  std::string baseline, candidate;
  std::string report;  // --report DIR
  AbOptions ab;
};

Error WantedPolicies() {
  return MakeError(ErrorCode::kInvalidArgument,
                   "ab: wanted [MODEL] BASELINE CANDIDATE, e.g. carpool ab vanilla oea:k0=3 (or "
                   "--baseline and --candidate)");
}

/// Sorts the positional arguments into model, baseline and candidate.
Status Arrange(Flags& flags) {
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

void Print(const AbReport& r, const Flags& flags) {
  TextTable table({"", "baseline", "candidate"});
  const auto row = [&](const std::string& name, const auto& cell) {
    table.AddRow({name, cell(r.baseline), cell(r.candidate)});
  };
  row("routing", [](const AbSide& s) { return s.routing; });
  row("step, median", [](const AbSide& s) { return HumanSeconds(s.pace.step_us_median * 1e-6); });
  row("MoE layer, median",
      [](const AbSide& s) { return HumanSeconds(s.pace.moe_us_median * 1e-6); });
  row("tokens/s", [](const AbSide& s) { return fmt::format("{:.0f}", s.pace.tokens_per_s); });
  row("distinct experts T",
      [](const AbSide& s) { return fmt::format("{:.2f}", DistinctExpertsMean(s.pace.stats)); });
  row("expert bytes per step", [](const AbSide& s) { return HumanBytes(BytesPerStep(s.pace)); });
  row("cross-entropy",
      [](const AbSide& s) { return fmt::format("{:.4f}", s.quality.cross_entropy); });
  row("T, teacher-forced",
      [](const AbSide& s) { return fmt::format("{:.2f}", DistinctExpertsMean(s.quality.stats)); });
  fmt::print("{}\n", table.Render());
  const auto interval = [](const Interval& i) {
    return fmt::format("{:.4f}  (95 %: {:.4f} to {:.4f})", i.value, i.low, i.high);
  };
  const Quality& q = r.candidate.quality;
  fmt::print("step time, candidate / baseline   {}\n", interval(r.step_ratio));
  fmt::print("MoE time, candidate / baseline    {}\n", interval(r.moe_ratio));
  if (r.has_ce_interval)
    fmt::print("cross-entropy change              {}\n", interval(r.ce_change));
  fmt::print("KL(candidate || baseline)         mean {:.5f}, p50 {:.5f}, p99 {:.4f}, max {:.3f}\n",
             q.kl_mean, q.kl_p50, q.kl_p99, q.kl_max);
  fmt::print("top-1 agreement                   {}\n", Percent(q.top1_agreement));
  fmt::print("changed assignments               {} of {}\n",
             HumanCount(r.candidate.changed_assignments), HumanCount(r.candidate.assignments));
  auto worst = q.requests;
  std::sort(worst.begin(), worst.end(),
            [](const RequestQuality& a, const RequestQuality& b) { return a.kl > b.kl; });
  fmt::print("worst requests by mean KL        ");
  for (size_t i = 0; i < std::min<size_t>(3, worst.size()); ++i)
    fmt::print(" stream {} window {}: {:.5f}{}", worst[i].stream, worst[i].window, worst[i].kl,
               i + 1 < std::min<size_t>(3, worst.size()) ? ";" : "\n");
  fmt::print(
      "measured                          batch {}, {} tokens scored, {} rounds of 2 blocks of "
      "{} steps\n\n",
      flags.ab.pace.batch, HumanCount(q.tokens), flags.ab.pace.rounds, flags.ab.pace.steps);
  fmt::print("{}\n", r.verdict);
}

Status Run(Flags flags) {
  RETURN_IF_ERROR(Arrange(flags));
  ASSIGN_OR_RETURN(auto baseline, ParsePolicy(flags.baseline));
  ASSIGN_OR_RETURN(auto candidate, ParsePolicy(flags.candidate));
  ASSIGN_OR_RETURN(const LabInput in, LoadLabInput(flags.lab));
  AbOptions& o = flags.ab;
  o.seed = o.pace.seed = flags.lab.engine.common.seed;
  o.quality.batch = o.pace.batch;
  o.quality.activations = o.pace.activations = in.options.activations;
  ProgressLine scoring("scoring"), decoding("decoding");
  o.quality.progress = [&](size_t done, size_t total) { scoring.Update(done, total); };
  o.pace.progress = [&](size_t done, size_t total) { decoding.Update(done, total); };
  ASSIGN_OR_RETURN(const AbReport report, RunAb(in.engine->model(), in.engine->pool(), in.tokens,
                                                std::move(baseline), std::move(candidate), o));
  if (!flags.report.empty()) {
    RETURN_IF_ERROR(WriteAbReport(
        flags.report,
        DescribeRun(CommandLine(), in.model_dir, in.text_path, in.options.threads, o.seed), report,
        o));
  }
  if (flags.lab.engine.common.json) {
    fmt::print("{}\n", AbJson(report, o).dump(2));
  } else {
    Print(report, flags);
  }
  return {};
}

}  // namespace

void AddAb(CLI::App& root) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(
      root, "ab", "A candidate policy against a baseline: speed, quality, and whether it is noise",
      [flags] { return Run(*flags); });
  command->add_option("POLICIES", flags->positional,
                      "[MODEL] BASELINE CANDIDATE; one policy alone is compared with vanilla");
  AddLabFlags(*command, flags->lab, false);
  command->add_option("--baseline", flags->baseline, "Baseline policy; default vanilla")
      ->type_name("POLICY");
  command->add_option("--candidate,--routing", flags->candidate, "Candidate policy")
      ->type_name("POLICY");
  command->add_option("--report", flags->report, "Folder for an HTML page, JSON and CSV")
      ->type_name("DIR");
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
      ->capture_default_str();
  command->add_option("--rounds", pace.rounds, "A B B A rounds of the speed comparison")
      ->type_name("R")
      ->capture_default_str();
  command->add_option("--prompt", pace.prompt, "Tokens each timed sequence starts from")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--steps", pace.steps, "Timed steps per block")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--min-effect", flags->ab.min_effect,
                   "Smallest change of step time that can win")
      ->type_name("SHARE")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
}

}  // namespace carpool::cli
