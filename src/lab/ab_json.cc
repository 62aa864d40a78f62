#include "lab/ab_json.h"

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson Known(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson SideJson(const AbSide& s, const AbReport& r) {
  OrderedJson json = {{"routing", s.routing},
                      {"step_us", s.pace.step_us_median},
                      {"moe_us_per_layer",
                       r.has_moe_ratio ? OrderedJson(s.pace.moe_us_median) : OrderedJson(nullptr)},
                      {"tokens_per_s", s.pace.tokens_per_s},
                      {"distinct_experts", Known(s.distinct_experts)},
                      {"expert_bytes_per_step", Known(s.expert_bytes_per_step)}};
  json["cross_entropy"] =
      r.has_quality ? OrderedJson(s.quality.cross_entropy) : OrderedJson(nullptr);
  json["distinct_experts_teacher_forced"] = Known(s.distinct_experts_teacher_forced);
  json["experts_per_row"] = Known(s.experts_per_row);
  json["assignments"] = s.assignments;
  json["changed_assignments"] = s.changed_assignments;
  json["block_step_us"] = s.pace.step_us;
  return json;
}

std::string_view WinnerName(AbWinner winner) {
  switch (winner) {
    case AbWinner::kNone:
      return "none";
    case AbWinner::kBaseline:
      return "baseline";
    case AbWinner::kCandidate:
      return "candidate";
  }
  return "?";
}

}  // namespace

OrderedJson IntervalJson(const Interval& i) {
  return {{"value", i.value}, {"ci95", OrderedJson::array({i.low, i.high})}};
}

OrderedJson AbJson(const AbReport& r, const AbOptions& o) {
  const Quality& q = r.candidate.quality;
  OrderedJson json;
  json["baseline"] = SideJson(r.baseline, r);
  json["candidate"] = SideJson(r.candidate, r);
  json["ratio"] = IntervalJson(r.step_ratio);
  const auto quality = [&](double value) {
    return r.has_quality ? OrderedJson(value) : OrderedJson(nullptr);
  };
  json["moe_ratio"] = r.has_moe_ratio ? IntervalJson(r.moe_ratio) : OrderedJson(nullptr);
  json["cross_entropy_change"] =
      r.has_quality_interval ? IntervalJson(r.ce_change) : OrderedJson(nullptr);
  json["kl_mean"] = quality(q.kl_mean);
  json["kl_mean_ci95"] = r.has_quality_interval
                             ? OrderedJson::array({r.kl_mean.low, r.kl_mean.high})
                             : OrderedJson(nullptr);
  json["kl_p50"] = quality(q.kl_p50);
  json["kl_p99"] = quality(q.kl_p99);
  json["kl_max"] = quality(q.kl_max);
  json["kl_worst_request"] = quality(q.kl_worst_request);
  json["kl_is_lower_bound"] = r.kl_is_bound;
  json["top1_agreement"] = quality(q.top1_agreement);
  json["changed_assignments"] = r.candidate.changed_assignments;
  json["winner"] = WinnerName(r.winner);
  json["verdict"] = r.verdict;
  json["notes"] = r.notes;
  json["requests"] = OrderedJson::array();
  for (size_t i = 0; i < q.requests.size(); ++i) {
    const RequestQuality &c = q.requests[i], &b = r.baseline.quality.requests[i];
    json["requests"].push_back({{"stream", c.stream},
                                {"window", c.window},
                                {"cross_entropy_baseline", b.cross_entropy},
                                {"cross_entropy_candidate", c.cross_entropy},
                                {"kl_mean", c.kl},
                                {"top1_agreement", c.top1_agreement}});
  }
  json["tokens"] = q.tokens;
  json["batch"] = o.pace.batch;
  json["context"] = o.quality.context;
  json["rounds"] = o.pace.rounds;
  json["steps"] = o.pace.steps;
  json["prompt"] = o.pace.prompt;
  json["seed"] = o.seed;
  return json;
}

}  // namespace carpool
