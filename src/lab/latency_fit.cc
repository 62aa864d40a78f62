#include "lab/latency_fit.h"

#include <array>
#include <cmath>

namespace carpool {
namespace {

constexpr size_t kUnknowns = 3;
using Row = std::array<double, kUnknowns + 1>;  // an equation: coefficients, right side

/// Gaussian elimination with pivoting; false when the equations do not determine the unknowns.
bool Solve(std::array<Row, kUnknowns>& m, std::array<double, kUnknowns>& x) {
  for (size_t c = 0; c < kUnknowns; ++c) {
    size_t pivot = c;
    for (size_t r = c + 1; r < kUnknowns; ++r)
      if (std::abs(m[r][c]) > std::abs(m[pivot][c])) pivot = r;
    if (std::abs(m[pivot][c]) < 1e-9) return false;
    std::swap(m[c], m[pivot]);
    for (size_t r = c + 1; r < kUnknowns; ++r) {
      const double f = m[r][c] / m[c][c];
      for (size_t k = c; k <= kUnknowns; ++k) m[r][k] -= f * m[c][k];
    }
  }
  for (size_t i = kUnknowns; i-- > 0;) {
    x[i] = m[i][kUnknowns];
    for (size_t k = i + 1; k < kUnknowns; ++k) x[i] -= m[i][k] * x[k];
    x[i] /= m[i][i];
  }
  return true;
}

}  // namespace

Result<LatencyFit> FitLatency(std::span<const LatencySample> samples) {
  if (samples.size() < kUnknowns + 1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a latency fit needs at least {} measured settings, got {}", kUnknowns + 1,
                     samples.size());
  }
  // Scaled to about 1 so that one threshold fits all units.
  double scale_a = 0.0, scale_t = 0.0, mean = 0.0;
  for (const auto& s : samples) {
    scale_a = std::max(scale_a, s.assignments);
    scale_t = std::max(scale_t, s.distinct);
    mean += s.us / static_cast<double>(samples.size());
  }
  if (scale_a <= 0.0 || scale_t <= 0.0)
    return MakeError(ErrorCode::kInvalidArgument, "a latency fit needs steps with assignments");
  std::array<Row, kUnknowns> m{};
  for (const auto& s : samples) {
    const Row row = {s.assignments / scale_a, s.distinct / scale_t, 1.0, s.us};
    for (size_t i = 0; i < kUnknowns; ++i)
      for (size_t k = 0; k <= kUnknowns; ++k) m[i][k] += row[i] * row[k];
  }
  for (auto& r : m)
    for (auto& v : r) v /= static_cast<double>(samples.size());
  std::array<double, kUnknowns> x{};
  if (!Solve(m, x)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a latency fit needs settings whose assignments and distinct experts vary "
                     "independently; measure more policies or batch sizes");
  }
  LatencyFit fit{x[0] / scale_a, x[1] / scale_t, x[2], 0.0};
  double left = 0.0, total = 0.0;
  for (const auto& s : samples) {
    const double error = s.us - fit.Predict(s.assignments, s.distinct);
    left += error * error;
    total += (s.us - mean) * (s.us - mean);
  }
  fit.r2 = total > 0.0 ? 1.0 - left / total : 0.0;
  return fit;
}

}  // namespace carpool
