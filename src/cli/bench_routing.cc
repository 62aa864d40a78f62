// carpool bench routing: what the gate and the policy cost, without a model.
#include "lab/bench_routing.h"

#include <nlohmann/json.hpp>

#include "base/text_table.h"
#include "cli/bench.h"
#include "cli/bench_json.h"
#include "cli/engine_flags.h"
#include "routing/row_kernels.h"

namespace carpool::cli {
namespace {

struct BenchRoutingFlags {
  CommonFlags common;
  BenchRoutingOptions options;
  std::string batch = "1,16,64,512";
  std::string policies = "vanilla,oea:k0=3";
};

Status DoBenchRouting(const BenchRoutingFlags& flags) {
  BenchRoutingOptions options = flags.options;
  options.seed = flags.common.seed;
  ASSIGN_OR_RETURN(options.batches, ParseSizes("--batch", flags.batch));
  ASSIGN_OR_RETURN(options.policies, ParsePolicies(flags.policies));
  ASSIGN_OR_RETURN(const auto rows, BenchRouting(options));
  if (flags.common.json) {
    nlohmann::ordered_json json;
    json["rows"] = nlohmann::ordered_json::array();
    for (const BenchRoutingRow& r : rows) json["rows"].push_back(BenchRowJson(r));
    json["membw_gbytes_per_s"] = nullptr;
    json["shape"] = options.shape;
    json["threads"] = 1;
    json["simd"] = RowKernelTarget();
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  TextTable table({"routing", "rows", "distinct experts", "us (median)", "p10", "p90", "us/row"});
  for (const BenchRoutingRow& r : rows) {
    table.AddRow({r.routing, fmt::format("{}", r.batch), fmt::format("{:.1f}", r.distinct_experts),
                  fmt::format("{:.2f}", r.us_median), fmt::format("{:.2f}", r.us_p10),
                  fmt::format("{:.2f}", r.us_p90),
                  fmt::format("{:.3f}", r.us_median / static_cast<double>(r.batch))});
  }
  fmt::print("{} on one thread, {}\n{}", options.shape, RowKernelTarget(), table.Render());
  return {};
}

}  // namespace

void AddBenchRouting(CLI::App& bench) {
  auto flags = std::make_shared<BenchRoutingFlags>();
  CLI::App* command =
      AddCommand(bench, "routing", "Routing alone: logits to ids and weights, one thread",
                 [flags] { return DoBenchRouting(*flags); });
  AddJson(*command, flags->common);
  AddSeed(*command, flags->common);
  command
      ->add_option("--shape", flags->options.shape,
                   "Preset whose gate is measured, e.g. glm-5, qwen3-30b, deepseek-v3, demo")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "Rows per step")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("--routing", flags->policies, "Policies to compare")
      ->type_name("LIST")
      ->capture_default_str();
  command
      ->add_option("--repeats", flags->options.repeats, "Timed calls per row; 0: about 0.2 s each")
      ->type_name("N")
      ->check(CLI::Range(size_t{0}, size_t{1} << 24))
      ->capture_default_str();
}

}  // namespace carpool::cli
