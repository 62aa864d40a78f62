// A picture of what limits a MoE layer.
#pragma once

#include <string>

#include "lab/bench_moe.h"

namespace carpool {

/// Bytes of weights per second against rows per distinct expert, one dot per (batch, policy), under
/// the measured memory bandwidth. Dots at the line are memory-bound; they sink where arithmetic
/// takes over. A self-contained SVG.
std::string RooflineSvg(const BenchMoeReport& report, const std::string& title);

}  // namespace carpool
