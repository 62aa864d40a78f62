// The A/B report as JSON. Apart from ab.h because of the header it needs.
#pragma once

#include <nlohmann/json.hpp>

#include "lab/ab.h"

namespace carpool {

nlohmann::ordered_json AbJson(const AbReport& report, const AbOptions& options);
/// {"value": …, "ci95": [low, high]}.
nlohmann::ordered_json IntervalJson(const Interval& interval);

}  // namespace carpool
