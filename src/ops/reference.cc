#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace carpool::reference {

std::vector<double> RmsNorm(std::span<const float> x, std::span<const float> w, double eps) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(w[i] * (x[i] * scale));
  return y;
}

std::vector<double> LayerNorm(std::span<const float> x, std::span<const float> w,
                              std::span<const float> b, double eps) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (double v : x) mean += v / n;
  for (double v : x) variance += (v - mean) * (v - mean) / n;
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i)
    y.push_back((x[i] - mean) / std::sqrt(variance + eps) * w[i] + b[i]);
  return y;
}

std::vector<double> SiluMul(std::span<const float> gate, std::span<const float> up) {
  std::vector<double> y;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    y.push_back(g / (1.0 + std::exp(-g)) * up[i]);
  }
  return y;
}

std::vector<double> Attend(std::span<const float> q, std::span<const float* const> keys,
                           std::span<const float* const> values, size_t value_width, double scale,
                           double sink) {
  std::vector<double> scores;
  for (const float* key : keys) {
    double dot = 0;
    for (size_t i = 0; i < q.size(); ++i) dot += static_cast<double>(q[i]) * key[i];
    scores.push_back(dot * scale);
  }
  const double max = std::max(sink, *std::max_element(scores.begin(), scores.end()));
  double sum = std::exp(sink - max);
  for (double& s : scores) sum += s = std::exp(s - max);
  std::vector<double> out(value_width, 0.0);
  for (size_t t = 0; t < keys.size(); ++t) {
    for (size_t i = 0; i < value_width; ++i) out[i] += scores[t] / sum * values[t][i];
  }
  return out;
}

double IndexScore(std::span<const float> q, std::span<const float> w, std::span<const float> key,
                  double scale) {
  double score = 0;
  for (size_t h = 0; h < w.size(); ++h) {
    double dot = 0;
    for (size_t i = 0; i < key.size(); ++i)
      dot += static_cast<double>(q[h * key.size() + i]) * key[i];
    score += w[h] * std::max(dot * scale, 0.0);
  }
  return score;
}

std::vector<uint32_t> TopPositions(std::span<const float> scores, size_t k) {
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (std::isnan(scores[b])) return !std::isnan(scores[a]);
    return scores[a] > scores[b];
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace carpool::reference
