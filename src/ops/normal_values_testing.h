// Inputs of the tests of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace carpool::testing {

/// `n` independent values of the standard normal distribution.
inline std::vector<float> NormalValues(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (auto& v : values) v = normal(random);
  return values;
}

}  // namespace carpool::testing
