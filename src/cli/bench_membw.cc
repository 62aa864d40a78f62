// carpool bench membw: read bandwidth of the memory by thread count.
#include "lab/bench_membw.h"

#include <nlohmann/json.hpp>

#include "base/text_table.h"
#include "cli/bench.h"
#include "cli/engine_flags.h"

namespace carpool::cli {
namespace {

struct BenchMembwFlags {
  CommonFlags common;
  std::string thread_list;
  size_t megabytes = 1024;
  size_t passes = 16;
};

Result<std::vector<size_t>> ThreadCounts(const BenchMembwFlags& flags) {
  if (!flags.thread_list.empty()) {
    ASSIGN_OR_RETURN(auto counts, ParseSizes("--thread-list", flags.thread_list));
    for (const size_t n : counts) {
      ASSIGN_OR_RETURN([[maybe_unused]] const size_t checked,
                       ResolveThreads(true, static_cast<long long>(n)));
    }
    return counts;
  }
  ASSIGN_OR_RETURN(const size_t most, ResolveThreads(flags.common.threads.has_value(),
                                                     flags.common.threads.value_or(0)));
  std::vector<size_t> counts;
  for (size_t n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(most);
  return counts;
}

Status DoBenchMembw(const BenchMembwFlags& flags) {
  ASSIGN_OR_RETURN(const auto counts, ThreadCounts(flags));
  const auto rows = BenchMembw(counts, flags.megabytes << 20, flags.passes);
  const double best = BestBandwidth(rows);
  if (flags.common.json) {
    nlohmann::ordered_json json;
    json["rows"] = nlohmann::ordered_json::array();
    for (const auto& r : rows) {
      json["rows"].push_back({{"threads", r.threads},
                              {"pages", r.huge_pages ? "huge" : "small"},
                              {"prefetch", r.prefetch},
                              {"gbytes_per_s", r.gbytes_per_s_median},
                              {"gbytes_per_s_best", r.gbytes_per_s_best}});
    }
    json["membw_gbytes_per_s"] = best;
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  TextTable table({"threads", "pages", "prefetch", "GB/s (median)", "best"});
  for (const auto& r : rows) {
    table.AddRow({fmt::format("{}", r.threads), r.huge_pages ? "huge" : "small",
                  r.prefetch ? "yes" : "no", fmt::format("{:.2f}", r.gbytes_per_s_median),
                  fmt::format("{:.2f}", r.gbytes_per_s_best)});
  }
  fmt::print("{}read bandwidth: {:.2f} GB/s\n", table.Render(), best);
  return {};
}

}  // namespace

void AddBenchMembw(CLI::App& bench) {
  auto flags = std::make_shared<BenchMembwFlags>();
  CLI::App* command = AddCommand(bench, "membw", "Read bandwidth of the memory",
                                 [flags] { return DoBenchMembw(*flags); });
  AddThreads(*command, flags->common);
  AddJson(*command, flags->common);
  command
      ->add_option("--thread-list", flags->thread_list,
                   "Thread counts; default: 1, 2, 4 ... --threads")
      ->type_name("LIST");
  command
      ->add_option("--megabytes", flags->megabytes,
                   "Memory to read; several times the last-level cache")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{256}, size_t{1} << 20));
  command->add_option("--passes", flags->passes, "Timed reads of 128 MB per row")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{100000}));
}

}  // namespace carpool::cli
