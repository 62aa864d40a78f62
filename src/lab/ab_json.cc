#include "lab/ab_json.h"

namespace carpool {
namespace {

using Json = nlohmann::ordered_json;

Json SideJson(const AbSide& s) {
  return {{"routing", s.routing},
          {"step_us", s.pace.step_us_median},
          {"moe_us_per_layer", s.pace.moe_us_median},
          {"tokens_per_s", s.pace.tokens_per_s},
          {"distinct_experts", DistinctExpertsMean(s.pace.stats)},
          {"expert_bytes_per_step", BytesPerStep(s.pace)},
          {"cross_entropy", s.quality.cross_entropy},
          {"distinct_experts_teacher_forced", DistinctExpertsMean(s.quality.stats)},
          {"experts_per_row", ExpertsPerRowMean(s.quality.stats)},
          {"assignments", s.assignments},
          {"changed_assignments", s.changed_assignments},
          {"block_step_us", s.pace.step_us}};
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

Json IntervalJson(const Interval& i) {
  return {{"value", i.value}, {"ci95", Json::array({i.low, i.high})}};
}

Json AbJson(const AbReport& r, const AbOptions& o) {
  const Quality& q = r.candidate.quality;
  Json json;
  json["baseline"] = SideJson(r.baseline);
  json["candidate"] = SideJson(r.candidate);
  json["ratio"] = IntervalJson(r.step_ratio);
  json["moe_ratio"] = IntervalJson(r.moe_ratio);
  json["cross_entropy_change"] = r.has_ce_interval ? IntervalJson(r.ce_change) : Json(nullptr);
  json["kl_mean"] = q.kl_mean;
  json["kl_p50"] = q.kl_p50;
  json["kl_p99"] = q.kl_p99;
  json["kl_max"] = q.kl_max;
  json["kl_worst_request"] = q.kl_worst_request;
  json["top1_agreement"] = q.top1_agreement;
  json["changed_assignments"] = r.candidate.changed_assignments;
  json["winner"] = WinnerName(r.winner);
  json["verdict"] = r.verdict;
  json["requests"] = Json::array();
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
