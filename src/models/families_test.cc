// Every family on a tiny seeded model: golden logits, exact mode, batch-aware routing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "models/all_models.h"
#include "models/golden_families_testing.h"
#include "models/model_runner_testing.h"

namespace carpool {
namespace {

using testing::GoldenCheckpoint;
using testing::GoldenTokens;
using testing::Runner;
using testing::TinyFamilies;
using testing::TinyFamily;

constexpr size_t kVocab = 320;

class Family : public ::testing::TestWithParam<TinyFamily> {
 protected:
  Family() : checkpoint_(std::string("family_") + GetParam().name) {
    GetParam().Write(checkpoint_);
  }
  GoldenCheckpoint checkpoint_;
};

TEST_P(Family, GoldenLogits) {
  const TinyFamily& family = GetParam();
  Runner runner(checkpoint_.dir());
  const auto logits = runner.Prefill(GoldenTokens(family.tokens), family.tokens);
  for (float l : logits) ASSERT_TRUE(std::isfinite(l));
  if (!family.golden) return;
  const float* last = logits.data() + (family.tokens - 1) * kVocab;
  double max = 0, sum = 0, squares = 0;
  for (const double l : logits) {
    max = std::max(max, std::fabs(l));
    squares += l * l;
  }
  for (size_t i = 0; i < kVocab; ++i) sum += last[i];
  for (size_t i = 0; i < family.golden->first.size(); ++i)
    EXPECT_NEAR(last[i], family.golden->first[i], 2e-4 * max) << i;
  EXPECT_NEAR(sum, family.golden->sum, 0.01);
  EXPECT_EQ(std::max_element(last, last + kVocab) - last, family.golden->argmax);
  EXPECT_NEAR(squares, family.golden->squares, 1e-5 * family.golden->squares);
}

TEST_P(Family, WholePrefillEqualsChunksEqualsTokenByToken) {
  const auto ids = GoldenTokens(20);
  const auto whole = Runner(checkpoint_.dir()).Prefill(ids, 20);
  for (const size_t chunk : {1, 3, 17}) {
    for (const size_t threads : {1, 3})
      EXPECT_EQ(Runner(checkpoint_.dir(), threads).Prefill(ids, chunk), whole) << chunk;
  }
}

TEST_P(Family, ARowDoesNotDependOnItsBatchMates) {
  const auto ids = GoldenTokens(12);
  Runner alone(checkpoint_.dir());
  std::vector<std::vector<float>> want;
  for (uint32_t i = 0; i < ids.size(); ++i)
    want.push_back(alone.Step({{0, i, ids[i], RowPhase::kDecode}}));
  for (const uint32_t batch : {2, 5, 17}) {
    Runner runner(checkpoint_.dir(), 2);
    for (uint32_t i = 0; i < ids.size(); ++i) {
      std::vector<Runner::RowSpec> rows;
      for (uint32_t b = 0; b < batch; ++b) {
        const int32_t token = b == 0 ? ids[i] : static_cast<int32_t>((17 * b + 31 * i) % kVocab);
        rows.push_back({b, i, token, RowPhase::kDecode});
      }
      const auto logits = runner.Step(rows);
      ASSERT_TRUE(std::equal(want[i].begin(), want[i].end(), logits.begin())) << batch << " " << i;
    }
  }
}

TEST_P(Family, BatchAwareRoutingReadsFewerExperts) {
  const auto run = [&](const char* policy) {
    Runner runner(checkpoint_.dir(), 1, policy);
    std::vector<Runner::RowSpec> rows;
    for (uint32_t b = 0; b < 8; ++b)
      rows.push_back({b, 0, static_cast<int32_t>(17 * b + 3), RowPhase::kDecode});
    for (const float l : runner.Step(rows)) EXPECT_TRUE(std::isfinite(l));
    RoutingStats sum;
    for (const RoutingStats& layer : runner.stats().moe) {
      sum.distinct_experts += layer.distinct_experts;
      sum.assignments += layer.assignments;
      sum.piggybacks += layer.piggybacks;
    }
    return sum;
  };
  Runner probe(checkpoint_.dir());
  if (probe.config().NumMoeLayers() == 0) return;  // dense: nothing to route
  const RoutingStats exact = run("vanilla"), oea = run("oea:k0=1");
  EXPECT_LT(oea.distinct_experts, exact.distinct_experts);
  EXPECT_EQ(exact.piggybacks, 0u);
  EXPECT_GT(oea.piggybacks, 0u);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Family, ::testing::ValuesIn(TinyFamilies()),
                         [](const auto& family) { return std::string(family.param.name); });

TEST(Families, EveryArchitectureHasATinyModel) {
  for (const Architecture& a : AllArchitectures()) {
    if (a.model_type == "glm_moe_dsa" || a.model_type == "kimi_k2") continue;  // tests of their own
    const auto families = TinyFamilies();
    EXPECT_TRUE(std::any_of(families.begin(), families.end(), [&](const TinyFamily& f) {
      return f.name == a.model_type;
    })) << a.model_type;
  }
}

}  // namespace
}  // namespace carpool
