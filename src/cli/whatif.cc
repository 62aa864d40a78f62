// carpool whatif: what policies would have done to recorded routing.
#include "lab/whatif.h"

#include <nlohmann/json.hpp>

#include "base/text_table.h"
#include "cli/engine_flags.h"
#include "lab/hardware.h"
#include "lab/moe_shapes.h"

namespace carpool::cli {
namespace {

struct WhatifFlags {
  std::string trace, shape, format = "nvfp4", hardware;
  std::string policies;  // empty: DefaultPolicies
  size_t batch = 16, experts = 0;
  bool json = false;
};

/// Exact, then two steps of sharing and of pruning that a gate of `top_k` experts has room for.
std::string DefaultPolicies(size_t top_k) {
  std::string list = "vanilla";
  for (const char* form : {"oea:k0={}", "topk:k={}"}) {
    for (const size_t k : {top_k * 5 / 8, top_k * 3 / 8}) {
      if (k >= 1) list += "," + fmt::format(fmt::runtime(form), k);
    }
  }
  return list;
}

Status DoWhatif(const WhatifFlags& flags) {
  WhatIfOptions o;
  o.num_experts = flags.experts;
  if (!flags.policies.empty()) {
    ASSIGN_OR_RETURN(o.policies, ParsePolicies(flags.policies));
  }
  if (!flags.shape.empty()) {
    ASSIGN_OR_RETURN(const MoeShape shape, FindMoeShape(flags.shape));
    ASSIGN_OR_RETURN(const WeightFormat format, ParseWeightFormat(flags.format));
    o.bytes_per_expert =
        3.0 * static_cast<double>(shape.hidden * shape.width) * BytesPerWeight(format);
    if (o.num_experts == 0) o.num_experts = shape.gate.num_experts;
  }
  if (!flags.hardware.empty()) {
    ASSIGN_OR_RETURN(const Hardware hardware, FindHardware(flags.hardware));
    o.bandwidth_gbs = hardware.bandwidth_gbs * static_cast<double>(hardware.devices);
  }
  ASSIGN_OR_RETURN(const RoutingTrace trace, ReadRoutingTrace(flags.trace, flags.batch));
  if (flags.policies.empty()) {
    ASSIGN_OR_RETURN(o.policies, ParsePolicies(DefaultPolicies(trace.top_k)));
  }
  ASSIGN_OR_RETURN(const WhatIfReport report, WhatIf(trace, o));
  if (flags.json) {
    nlohmann::ordered_json json;
    json["format"] = trace.format;
    json["steps"] = report.steps;
    json["layers"] = trace.num_layers;
    json["rows_per_step"] = report.rows_per_step;
    json["has_scores"] = report.has_scores;
    json["rows"] = nlohmann::ordered_json::array();
    for (const WhatIfRow& r : report.rows) {
      auto worst = nlohmann::ordered_json::array();
      for (const LostRequest& w : r.worst)
        worst.push_back({{"request", w.request}, {"mass_kept", w.mass_kept}});
      json["rows"].push_back({{"routing", r.routing},
                              {"distinct_experts", r.distinct_experts},
                              {"experts_per_row", r.experts_per_row},
                              {"bytes", r.bytes},
                              {"us", r.us},
                              {"saved", r.saved},
                              {"mass_kept", r.mass_kept},
                              {"mass_kept_p1", r.mass_kept_p1},
                              {"worst", worst}});
    }
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  fmt::print("{}: {}, {} steps of {:.1f} rows, {} layers\n\n", flags.trace, trace.format,
             report.steps, report.rows_per_step, trace.num_layers);
  TextTable table({"routing", "T", "saved", "own experts/row", "bytes/step", "read time",
                   "mass kept", "p1", "worst request"});
  for (const WhatIfRow& r : report.rows) {
    table.AddRow({r.routing, fmt::format("{:.2f}", r.distinct_experts),
                  fmt::format("{:.1f} %", 100 * r.saved), fmt::format("{:.2f}", r.experts_per_row),
                  r.bytes > 0 ? HumanBytes(r.bytes) : "?",
                  r.us > 0 ? HumanSeconds(r.us * 1e-6) : "?", fmt::format("{:.3f}", r.mass_kept),
                  fmt::format("{:.3f}", r.mass_kept_p1),
                  fmt::format("{} ({:.3f})", r.worst.front().request, r.worst.front().mass_kept)});
  }
  fmt::print("{}", table.Render());
  if (!report.has_scores)
    fmt::print("The trace has no scores: ranks weigh 1, 1/2, 1/3, … in the mass columns.\n");
  return {};
}

}  // namespace

void AddWhatif(CLI::App& root) {
  auto flags = std::make_shared<WhatifFlags>();
  CLI::App* command =
      AddCommand(root, "whatif", "What policies would have done to recorded routing",
                 [flags] { return DoWhatif(*flags); });
  command
      ->add_option("TRACE", flags->trace,
                   "A level-2 routing trace, SGLang's recorder (.pt), answers with routed_experts "
                   "(JSON), an "
                   ".npy [tokens, layers, k], or CSV layer,token,experts")
      ->required();
  command
      ->add_option(
          "--routing", flags->policies,
          "Policies; savings are against the first; default: vanilla, then oea and topk at 5/8 and "
          "3/8 of the trace's k")
      ->type_name("LIST");
  command->add_option("--batch", flags->batch, "Tokens per step where the trace does not say")
      ->type_name("B")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{4096}));
  command->add_option("--experts", flags->experts, "Experts per layer; default: as the trace shows")
      ->type_name("N")
      ->check(CLI::Range(size_t{0}, size_t{1} << 24));
  command->add_option("--shape", flags->shape, "Model whose expert size gives bytes, e.g. glm-5")
      ->type_name("NAME");
  command->add_option("--format", flags->format, "Format of its experts")->capture_default_str();
  command->add_option("--hardware", flags->hardware, "Machine whose bandwidth gives times")
      ->type_name("NAME");
  command->add_flag("--json", flags->json, "Print one JSON document on stdout");
}

}  // namespace carpool::cli
