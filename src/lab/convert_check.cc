#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/convert.h"
#include "lab/logits.h"
#include "models/model.h"

namespace carpool {
namespace {

constexpr size_t kWindows = 4, kTokens = 32;

/// Ids spread over the vocabulary; the same for every file of a model.
std::vector<TokenWindow> SomeTokens(size_t vocab) {
  std::vector<TokenWindow> windows(kWindows);
  uint64_t state = 1;
  for (TokenWindow& window : windows) {
    for (size_t i = 0; i < kTokens; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      window.push_back(static_cast<int32_t>((state >> 33) % vocab));
    }
  }
  return windows;
}

Result<std::vector<std::vector<float>>> LogitsOf(const std::string& path, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const auto model, Model::Load(path, pool));
  std::vector<std::vector<float>> rows(kWindows * kTokens);
  RETURN_IF_ERROR(
      WindowLogits(*model, pool, Activations::kF32, SomeTokens(model->config().vocab_size),
                   [&](size_t window, size_t position, std::span<const float> logits) -> Status {
                     rows[window * kTokens + position].assign(logits.begin(), logits.end());
                     return {};
                   }));
  return rows;
}

/// log sum exp.
double Norm(const std::vector<float>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (const float value : x) sum += std::exp(value - max);
  return max + std::log(sum);
}

size_t Top(const std::vector<float>& x) {
  return static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

}  // namespace

Result<LogitsDifference> CompareLogits(const std::string& first, const std::string& second,
                                       ThreadPool& pool) {
  ASSIGN_OR_RETURN(const auto a, LogitsOf(first, pool));
  ASSIGN_OR_RETURN(const auto b, LogitsOf(second, pool));
  LogitsDifference d;
  d.tokens = a.size();
  double largest = 0.0;
  for (size_t r = 0; r < a.size(); ++r) {
    if (a[r].size() != b[r].size()) {
      return MakeError(ErrorCode::kInvalidArgument, "{} has a vocabulary of {}, {} one of {}",
                       first, a[r].size(), second, b[r].size());
    }
    const double za = Norm(a[r]), zb = Norm(b[r]);
    for (size_t i = 0; i < a[r].size(); ++i) {
      const double x = a[r][i], y = b[r][i];
      d.max_difference = std::max(d.max_difference, std::fabs(x - y));
      largest = std::max(largest, std::fabs(x));
      d.mean_kl += std::exp(x - za) * ((x - za) - (y - zb));
    }
    d.same_top += Top(a[r]) == Top(b[r]) ? 1.0 : 0.0;
  }
  const auto n = static_cast<double>(d.tokens);
  d.max_difference /= largest;
  d.mean_kl /= n;
  d.same_top /= n;
  return d;
}

}  // namespace carpool
