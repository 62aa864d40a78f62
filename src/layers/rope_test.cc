// Rope frequencies of real models, computed elsewhere in double precision.
#include "layers/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace carpool {
namespace {

void Expect(const RopeSpec& rope, std::initializer_list<size_t> pairs,
            std::initializer_list<double> want) {
  const auto f = RopeFrequencies(rope);
  ASSERT_EQ(f.size(), rope.dim / 2);
  const double* w = want.begin();
  for (const size_t i : pairs) {
    EXPECT_NEAR(f[i], *w, 1e-6 * *w) << i;
    ++w;
  }
}

TEST(Rope, YarnOfRealModels) {
  RopeSpec deepseek{.dim = 64,
                    .theta = 1e4,
                    .scaling = RopeScaling::kYarn,
                    .factor = 40,
                    .original_context = 4096};
  Expect(deepseek, {8, 11, 14, 17, 20, 23},
         {0.1, 0.0390069266, 0.0124479559, 0.00356199749, 0.000790569415, 3.33380358e-05});
  RopeSpec kimi = deepseek;
  kimi.theta = 5e4;
  kimi.factor = 32;
  Expect(
      kimi, {8, 11, 14, 17, 20, 23},
      {0.0668740305, 0.0183776859, 0.00453455411, 0.000872027659, 3.61404677e-05, 1.31058542e-05});
  RopeSpec gpt_oss = kimi;
  gpt_oss.theta = 1.5e5;
  gpt_oss.truncate = false;
  Expect(
      gpt_oss, {8, 11, 14, 17, 20, 23},
      {0.0508132748, 0.0115920493, 0.00209379238, 0.000129318701, 1.81883367e-05, 5.95023926e-06});
  RopeSpec tiny = deepseek;
  tiny.dim = 8;
  tiny.factor = 4;
  tiny.original_context = 64;
  Expect(tiny, {0, 1, 2, 3}, {1, 0.0625, 0.0025, 0.00025});
}

TEST(Rope, PlainLinearAndLlama3) {
  RopeSpec rope{.dim = 8, .theta = 1e4};
  Expect(rope, {0, 1, 2, 3}, {1, 0.1, 0.01, 0.001});
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  Expect(rope, {0, 3}, {0.25, 0.00025});
  // Turns within 64 tokens: 10.2, 1.02, 0.102, 0.0102.
  rope.scaling = RopeScaling::kLlama3;
  rope.original_context = 64;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  const double turns = 64 * 0.1 / (2 * M_PI), smooth = (turns - 1) / 3;
  Expect(rope, {0, 1, 2, 3}, {1, (1 - smooth) * 0.025 + smooth * 0.1, 0.0025, 0.00025});
}

TEST(Rope, Temperatures) {
  EXPECT_NEAR(YarnScale(40, 1), 1.368888, 1e-6);
  EXPECT_NEAR(YarnScale(32, 1), 1.34657, 1e-5);
  EXPECT_EQ(YarnScale(1, 1), 1.0);
}

}  // namespace
}  // namespace carpool
