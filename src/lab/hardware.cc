#include "lab/hardware.h"

#include <algorithm>

namespace carpool {
namespace {

struct HardwareRow {
  std::string_view name;
  size_t devices;
  double bandwidth, memory, cache, interconnect, tops16, tops8, tops4, efficiency;
  size_t tile;
  double launch;
  size_t launches;
};

// Sources and reasoning: docs/LAB.md, "Hardware presets". CPU bandwidth is 80 % of channels x rate
// x 8 bytes; CPU peaks are int8 multiply-adds with VNNI at base clock.
constexpr HardwareRow kHardware[] = {
    // name, devices, GB/s, GB, cache MB, link GB/s, 16, 8, 4 bit Tops, efficiency, tile, us,
    // launches
    {"epyc-9004-2s", 1, 737, 1536, 768, 0, 18, 74, 0, 0.25, 1, 5, 3},
    {"epyc-9005-2s", 1, 983, 1536, 768, 0, 44, 177, 0, 0.25, 1, 5, 3},
    {"xeon-6980p-2s", 1, 1352, 1536, 1008, 0, 33, 131, 0, 0.25, 1, 5, 3},
    {"strix-halo", 1, 215, 128, 32, 0, 2, 8, 0, 0.25, 1, 3, 3},
    {"dgx-spark", 1, 273, 128, 24, 0, 125, 250, 500, 0.35, 128, 5, 7},
    {"rtx-5090", 1, 1792, 32, 96, 0, 210, 419, 1676, 0.35, 128, 5, 7},
    {"rtx-pro-6000", 1, 1792, 96, 128, 0, 500, 1000, 2000, 0.35, 128, 5, 7},
    {"rtx-pro-6000-x8", 8, 1792, 96, 128, 50, 500, 1000, 2000, 0.35, 128, 5, 7},
    {"a100", 1, 2039, 80, 40, 0, 312, 0, 0, 0.5, 64, 5, 7},
    {"a100-x8", 8, 2039, 80, 40, 300, 312, 0, 0, 0.5, 64, 5, 7},
    {"h100", 1, 3350, 80, 50, 0, 989, 1979, 0, 0.5, 64, 5, 7},
    {"h100-x8", 8, 3350, 80, 50, 450, 989, 1979, 0, 0.5, 64, 5, 7},
    {"h200", 1, 4800, 141, 50, 0, 989, 1979, 0, 0.5, 64, 5, 7},
    {"h200-x8", 8, 4800, 141, 50, 450, 989, 1979, 0, 0.5, 64, 5, 7},
    {"b200", 1, 8000, 180, 126, 0, 2250, 4500, 9000, 0.5, 128, 5, 7},
    {"b200-x8", 8, 8000, 180, 126, 900, 2250, 4500, 9000, 0.5, 128, 5, 7},
    {"mi300x", 1, 5300, 192, 256, 0, 1307, 2615, 0, 0.4, 64, 6, 7},
    {"mi300x-x8", 8, 5300, 192, 256, 448, 1307, 2615, 0, 0.4, 64, 6, 7},
};

}  // namespace

Result<Hardware> FindHardware(std::string_view name) {
  for (const HardwareRow& r : kHardware) {
    if (r.name != name) continue;
    return Hardware{std::string(r.name),
                    r.devices,
                    r.bandwidth,
                    r.memory,
                    r.cache,
                    r.interconnect,
                    r.tops16,
                    r.tops8,
                    r.tops4,
                    r.efficiency,
                    r.tile,
                    r.launch,
                    r.launches,
                    {},
                    {}};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "--hardware: unknown hardware '{}'; known: here, {}; or describe it with "
                   "--bandwidth, --tops and --memory",
                   name, fmt::join(HardwareNames(), ", "));
}

std::vector<std::string> HardwareNames() {
  std::vector<std::string> names;
  for (const HardwareRow& r : kHardware) names.emplace_back(r.name);
  return names;
}

double BytesPerWeight(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 4.0;
    case WeightFormat::kBF16:
      return 2.0;
    case WeightFormat::kFP8:
      return 1.0;
    case WeightFormat::kQ8:
      return 1.0 + 1.0 / 16;
    case WeightFormat::kNVFP4:
      return 0.5 + 1.0 / 16;  // a byte of scale per 16
    case WeightFormat::kMXFP4:
      return 0.5 + 1.0 / 32;
    case WeightFormat::kQ4:
      return 0.5 + 1.0 / 8;  // four bytes of scale and minimum per 32
    case WeightFormat::kQ6:
      return 0.75 + 1.0 / 8;
  }
  return 4.0;
}

double Gmacs(const Hardware& h, WeightFormat format, double rows) {
  if (!h.rate_rows.empty()) {
    const auto& x = h.rate_rows;
    const auto& y = h.rate_gmacs;
    if (rows <= static_cast<double>(x.front())) return y.front();
    for (size_t i = 0; i + 1 < x.size(); ++i) {
      const auto x0 = static_cast<double>(x[i]), x1 = static_cast<double>(x[i + 1]);
      if (rows <= x1) return y[i] + (rows - x0) / (x1 - x0) * (y[i + 1] - y[i]);
    }
    return y.back();
  }
  const double bytes = BytesPerWeight(format);
  double tops = h.tops_16bit;
  if (bytes < 1.5) tops = std::max(tops, h.tops_8bit);
  if (bytes < 0.8) tops = std::max(tops, h.tops_4bit);
  return tops * 1e3 / 2 * h.efficiency;
}

}  // namespace carpool
