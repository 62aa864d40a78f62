// One row of a benchmark as JSON, with the keys every benchmark of speed shares.
#pragma once

#include <nlohmann/json.hpp>

namespace carpool::cli {

/// Rates a benchmark's rows do not have are null.
template <typename Row>
nlohmann::ordered_json BenchRowJson(const Row& r) {
  nlohmann::ordered_json json = {{"batch", r.batch},
                                 {"routing", r.routing},
                                 {"distinct_experts", r.distinct_experts},
                                 {"us_median", r.us_median},
                                 {"us_p10", r.us_p10},
                                 {"us_p90", r.us_p90},
                                 {"gbytes_per_s", nullptr},
                                 {"fraction_of_membw", nullptr},
                                 {"tokens_per_s", r.tokens_per_s}};
  if constexpr (requires { r.gbytes_per_s; }) json["gbytes_per_s"] = r.gbytes_per_s;
  if constexpr (requires { r.fraction_of_membw; }) json["fraction_of_membw"] = r.fraction_of_membw;
  return json;
}

}  // namespace carpool::cli
