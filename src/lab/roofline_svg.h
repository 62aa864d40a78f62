// A picture of what limits a MoE layer.
#pragma once

#include <span>
#include <string>

#include "lab/bench_moe.h"
#include "lab/plan_here.h"

namespace carpool {

/// Bytes of weights per second against rows per distinct expert, one dot per (batch, policy), under
/// two roofs: the measured memory bandwidth, and what arithmetic alone allows, i.e. the rate of an
/// expert that stays in cache. Dots at the first are memory-bound; they sink where the second comes
/// down. A self-contained SVG. `bytes_per_weight` is that of the experts' format.
std::string RooflineSvg(const BenchMoeReport& report, const std::string& title,
                        std::span<const ArithmeticRate> arithmetic, double bytes_per_weight);

}  // namespace carpool
