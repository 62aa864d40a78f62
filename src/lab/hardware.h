// Machines the planner knows, by what their makers publish, and the one it runs on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quant/packed_matrix.h"

namespace carpool {

/// What the planner asks of a machine. Rates are of one device, decimal units.
struct Hardware {
  std::string name;
  size_t devices = 1;           // weights are split over them, all work on every token
  double bandwidth_gbs = 0.0;   // sustained reads
  double memory_gb = 0.0;       // per device
  double cache_mb = 0.0;        // last-level cache: weights that fit are flagged
  double interconnect_gbs = 0;  // per device, for the two all-reduces of a layer; 0: one device
  // Arithmetic in 10^12 operations per second (a multiply-add is two), dense.
  double tops_16bit = 0.0, tops_8bit = 0.0, tops_4bit = 0.0;  // 0: done in the next wider one
  /// Share of the peak that small expert matmuls reach.
  double efficiency = 1.0;
  /// Rows of an expert are padded to this: the M of the tensor-core tile; 1 on CPUs.
  size_t tile_rows = 1;
  double launch_us = 0.0;  // per kernel launch or parallel region
  size_t launches = 0;     // of one MoE layer: router, top-k, sort, two grouped matmuls, …
  /// CPUs: measured 10^9 multiply-adds per second of a cache-resident expert at rows[i] rows.
  std::vector<size_t> rate_rows;
  std::vector<double> rate_gmacs;
};

/// A preset by name; the error lists the known ones.
Result<Hardware> FindHardware(std::string_view name);
std::vector<std::string> HardwareNames();

/// Bytes per weight as stored, scales included.
double BytesPerWeight(WeightFormat format);
/// 10^9 multiply-adds per second of one device for `rows` rows of one expert.
double Gmacs(const Hardware& hardware, WeightFormat format, double rows);

}  // namespace carpool
