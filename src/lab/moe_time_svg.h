// A picture of what fewer distinct experts save.
#pragma once

#include <string>

#include "lab/bench_moe.h"

namespace carpool {

/// Milliseconds of a layer against T, one dot per (batch, policy), with the line fitted to each
/// batch size's policies. A self-contained SVG.
std::string MoeTimeSvg(const BenchMoeReport& report, const std::string& title);

}  // namespace carpool
