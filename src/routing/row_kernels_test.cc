// The vector kernels against plain loops: the same bits on every target the CPU has, scores near
// the exact value.
#include "routing/row_kernels.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>

#include "base/aligned.h"
#include "routing/rank.h"
#include "routing/test_inputs.h"

namespace carpool {
namespace {

struct Row {
  explicit Row(size_t n)
      : logit(RoundUp(n, kRowBlock)),
        score(logit.size()),
        choice(logit.size()),
        key(logit.size()) {}
  RowScores Out() { return {logit.data(), score.data(), choice.data(), key.data(), nullptr}; }
  AlignedBuffer<float> logit, score, choice;
  AlignedBuffer<uint32_t> key;
};

/// Runs body once per SIMD target this CPU has.
template <typename Body>
void ForEachTarget(Body body) {
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(RowKernelTarget());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

double Exact(GateActivation a, double x) {
  if (a == GateActivation::kSqrtSoftplus) return std::sqrt(x > 30 ? x : std::log1p(std::exp(x)));
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

double UlpsApart(float got, double want) {
  const float near = static_cast<float>(want);
  const double ulp = static_cast<double>(std::nextafter(std::abs(near), INFINITY)) -
                     static_cast<double>(std::abs(near));
  return std::abs(static_cast<double>(got) - want) / ulp;
}

TEST(RowKernelTest, ScoresAreCloseToExactOnEveryTarget) {
  for (const auto activation : {GateActivation::kSigmoid, GateActivation::kSqrtSoftplus}) {
    GateSpec gate = TestGate(1024, 1, 1, 1, activation, false);
    std::vector<float> x(1024);
    ForEachTarget([&] {
      double worst = 0;
      for (float first = -84; first < 100; first += 4) {  // below -87 e^x is denormal
        for (size_t i = 0; i < x.size(); ++i) x[i] = first + static_cast<float>(i) / 256;
        Row row(1024);
        ScoreRowVector(gate, x.data(), nullptr, row.Out());
        for (size_t i = 0; i < x.size(); ++i) {
          const double want = Exact(activation, static_cast<double>(x[i]));
          worst = std::max(worst, UlpsApart(row.score[i], want));
        }
      }
      EXPECT_LE(worst, 3.0);
    });
  }
}

TEST(RowKernelTest, SoftmaxIsCloseToExact) {
  std::mt19937_64 rng(5);
  for (const size_t n : {1u, 3u, 16u, 60u, 257u}) {
    GateSpec gate = TestGate(n, 1, 1, 1, GateActivation::kSoftmax, false);
    const TestStep step = RandomStep(gate, 1, LogitKind::kNormal, rng, false);
    double sum = 0;
    for (const float v : step.logits) sum += std::exp(static_cast<double>(v));
    Row row(n);
    ScoreRowVector(gate, step.logits.data(), nullptr, row.Out());
    for (size_t e = 0; e < n; ++e) {
      EXPECT_LE(UlpsApart(row.score[e], std::exp(static_cast<double>(step.logits[e])) / sum), 6.0)
          << n << " " << e;
    }
  }
}

TEST(RowKernelTest, EveryTargetGivesTheSameBits) {
  std::mt19937_64 rng(9);
  for (const size_t n : {1u, 8u, 15u, 17u, 64u, 160u, 256u, 384u, 896u}) {
    for (const auto activation : {GateActivation::kSigmoid, GateActivation::kSoftmax,
                                  GateActivation::kSqrtSoftplus, GateActivation::kIdentity}) {
      for (const LogitKind kind : {LogitKind::kNormal, LogitKind::kTies, LogitKind::kExtreme}) {
        GateSpec gate = TestGate(n, 1, 1, 1, activation, true);
        const TestStep step = RandomStep(gate, 1, kind, rng, false);
        Row first(n);
        size_t first_nans = 0;
        bool have = false;
        ForEachTarget([&] {
          Row row(n);
          const size_t nans = ScoreRowVector(gate, step.logits.data(), step.bias.data(), row.Out());
          if (!have) {
            first_nans = ScoreRowVector(gate, step.logits.data(), step.bias.data(), first.Out());
            have = true;
          }
          EXPECT_EQ(nans, first_nans);
          EXPECT_EQ(std::memcmp(row.key.data(), first.key.data(), row.key.size() * 4), 0);
          for (size_t e = 0; e < n; ++e) {
            if (row.score[e] != row.score[e]) {
              EXPECT_NE(first.score[e], first.score[e]);
            } else {
              EXPECT_EQ(std::memcmp(&row.score[e], &first.score[e], 4), 0)
                  << "N=" << n << " e=" << e;
            }
            EXPECT_EQ(row.key[e], RankKey(row.choice[e]));
          }
        });
      }
    }
  }
}

TEST(RowKernelTest, TopKEqualsPlainInsertionOnEveryTarget) {
  std::mt19937_64 rng(3);
  for (const size_t n : {16u, 32u, 64u, 128u, 256u, 384u, 896u, 1024u, 2048u, 4096u}) {
    for (const size_t k : {1u, 2u, 6u, 8u, 16u, 22u, 64u, 300u}) {
      for (const int kind : {0, 1, 2, 3}) {
        std::vector<uint32_t> keys(n), mask(n);
        for (uint32_t& key : keys) {
          key = static_cast<uint32_t>(rng());
          if (kind == 1) key %= 4;            // ties, NaN and ineligible
          if (kind == 2) key = 1;             // all NaN
          if (kind == 3) key |= 0x80000000u;  // the common case: positive choices
        }
        for (uint32_t& m : mask) m = rng() % 3 == 0 ? ~0u : 0u;
        const size_t wanted = std::min(k, n);
        std::vector<int32_t> got(n, -7), want(n, -7);
        ForEachTarget([&] {
          for (const uint32_t* m :
               {static_cast<const uint32_t*>(nullptr), static_cast<const uint32_t*>(mask.data())}) {
            std::fill(got.begin(), got.end(), -7);
            std::fill(want.begin(), want.end(), -7);
            EXPECT_EQ(TopK(keys.data(), m, n, wanted, got.data()),
                      TopKScalar(keys.data(), m, n, wanted, want.data()));
            EXPECT_EQ(got, want) << "n=" << n << " k=" << k << " kind=" << kind;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace carpool
