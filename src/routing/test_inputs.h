// Seeded inputs shared by the routing tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "routing/policy_spec.h"
#include "routing/router.h"

namespace carpool {

/// Calls of operator new in this program so far.
uint64_t AllocationCount();

/// Rows of logits with the rows' roles, owned.
struct TestStep {
  size_t n = 0;
  std::vector<float> logits;  // [rows, n]
  std::vector<float> bias;    // [n] or empty
  std::vector<RowInfo> rows;

  MatView<const float> View() const { return {logits.data(), rows.size(), n}; }
};

/// A routed step, copied out of the router.
struct TestResult {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> weights;
  RoutingStats stats;
};

inline TestResult CopyOut(const RoutedStep& step) {
  TestResult out;
  for (size_t r = 0; r < step.counts.size(); ++r) {
    const auto n = static_cast<size_t>(step.counts[r]);
    out.ids.emplace_back(step.ids.Row(r), step.ids.Row(r) + n);
    out.weights.emplace_back(step.weights.Row(r), step.weights.Row(r) + n);
  }
  out.stats = step.stats;
  return out;
}

inline std::unique_ptr<Router> MakeTestRouter(const GateSpec& gate, const std::string& policy,
                                              size_t rows) {
  auto spec = ParsePolicy(policy);
  if (!spec) {
    ADD_FAILURE() << policy << ": " << spec.error().message;
    return nullptr;
  }
  auto router = Router::Make(gate, *spec, 1, rows);
  if (!router) {
    ADD_FAILURE() << policy << ": " << router.error().message;
    return nullptr;
  }
  return std::move(router).value();
}

inline TestResult RouteOnce(const GateSpec& gate, const std::string& policy, const TestStep& step) {
  auto router = MakeTestRouter(gate, policy, std::max<size_t>(step.rows.size(), 1));
  return CopyOut(router->Route(0, step.rows, step.View(), step.bias));
}

enum class LogitKind { kNormal, kPermutation, kTies, kExtreme };

/// kPermutation: each row a permutation of 0…n-1 divided by 32, no ties; kExtreme: NaN, infinities,
/// saturation.
inline TestStep RandomStep(const GateSpec& gate, size_t rows, LogitKind kind, std::mt19937_64& rng,
                           bool mixed_roles) {
  TestStep step;
  step.n = gate.num_experts;
  step.logits.resize(rows * step.n);
  std::normal_distribution<float> normal;
  for (size_t r = 0; r < rows; ++r) {
    float* row = step.logits.data() + r * step.n;
    if (kind == LogitKind::kPermutation) {
      for (size_t e = 0; e < step.n; ++e)
        row[e] = (static_cast<float>(e) - static_cast<float>(step.n) / 2) / 32;
      std::shuffle(row, row + step.n, rng);
      continue;
    }
    for (size_t e = 0; e < step.n; ++e) {
      row[e] = normal(rng);
      if (kind == LogitKind::kTies) row[e] = std::round(row[e]);
      if (kind == LogitKind::kExtreme) {
        constexpr float kSpecial[] = {
            0.0f,    -0.0f, __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 200.0f,
            -200.0f, 1e-40f};
        if (rng() % 2 == 0) row[e] = kSpecial[rng() % 8];
      }
    }
  }
  if (gate.has_bias) {
    step.bias.resize(step.n);
    for (float& b : step.bias) b = 0.1f * normal(rng);
  }
  step.rows.resize(rows);
  if (mixed_roles) {
    for (RowInfo& row : step.rows) {
      const uint64_t dice = rng() % 8;
      row.phase = dice == 0 ? RowPhase::kPrefill : RowPhase::kDecode;
      row.exact = dice == 1;
      row.valid = dice != 2;
    }
  }
  return step;
}

inline GateSpec TestGate(size_t n, size_t k, size_t groups = 1, size_t kept = 1,
                         GateActivation activation = GateActivation::kSigmoid, bool bias = true) {
  GateSpec gate;
  gate.num_experts = n;
  gate.top_k = k;
  gate.num_groups = groups;
  gate.groups_kept = kept;
  gate.activation = activation;
  gate.has_bias = bias;
  gate.scale = 2.5f;
  return gate;
}

}  // namespace carpool
