#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace carpool {
namespace {

constexpr size_t kVocab = 6;
const std::vector<float> kLogits = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f, 9.0f};  // id 5 has no token

Sampler MakeSampler() { return Sampler({1, 1, 1, 1, 1, 0}); }

int32_t SampleOnce(Sampler& sampler, const SamplingParams& params, uint64_t step,
                   std::vector<float> logits = kLogits, std::vector<int32_t> prompt = {},
                   std::vector<int32_t> output = {}) {
  return sampler.Sample(logits, params, prompt, output, step);
}

/// Relative frequencies over many steps.
std::map<int32_t, double> Frequencies(const SamplingParams& params) {
  Sampler sampler = MakeSampler();
  std::map<int32_t, double> counts;
  constexpr int kDraws = 40000;
  for (uint64_t step = 0; step < kDraws; ++step)
    counts[SampleOnce(sampler, params, step)] += 1.0 / kDraws;
  return counts;
}

TEST(Sampler, GreedyTakesTheBestAllowedIdAndTiesGoToTheLower) {
  Sampler sampler = MakeSampler();
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(SampleOnce(sampler, greedy, 0), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingParams params;
  params.seed = 3;
  const auto got = Frequencies(params);
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) sum += std::exp(kLogits[i]);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(got.at(static_cast<int32_t>(i)), std::exp(kLogits[i]) / sum, 0.01) << i;
  EXPECT_EQ(got.count(5), 0u);
}

TEST(Sampler, FiltersKeepExactlyTheRightTokens) {
  SamplingParams top_k;
  top_k.top_k = 1;
  EXPECT_EQ(Frequencies(top_k).size(), 1u);
  top_k.top_k = 3;
  EXPECT_EQ(Frequencies(top_k).size(), 3u);
  SamplingParams top_p;
  top_p.top_p = 0.5f;  // ids 1 and 3 hold 0.39 each
  const auto nucleus = Frequencies(top_p);
  EXPECT_EQ(nucleus.size(), 2u);
  EXPECT_NEAR(nucleus.at(1), 0.5, 0.02);
  SamplingParams min_p;
  min_p.min_p = 0.3f;  // exp(-1) = 0.37 of the best stays, exp(-2) goes
  EXPECT_EQ(Frequencies(min_p).size(), 3u);
}

TEST(Sampler, SeedAndStepDecideAndNothingElse) {
  Sampler a = MakeSampler(), b = MakeSampler();
  SamplingParams params;
  params.seed = 7;
  std::vector<int32_t> first, second, other;
  for (uint64_t step = 0; step < 50; ++step) first.push_back(SampleOnce(a, params, step));
  for (uint64_t step = 50; step > 0; --step)
    second.insert(second.begin(), SampleOnce(b, params, step - 1));
  EXPECT_EQ(first, second);
  params.seed = 8;
  for (uint64_t step = 0; step < 50; ++step) other.push_back(SampleOnce(a, params, step));
  EXPECT_NE(first, other);
}

TEST(Sampler, PenaltiesAndBias) {
  Sampler sampler = MakeSampler();
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 4.0f;
  EXPECT_EQ(SampleOnce(sampler, params, 0, kLogits, {1}, {}), 3);   // the prompt counts
  EXPECT_EQ(SampleOnce(sampler, params, 0, kLogits, {1}, {3}), 2);  // and so does the output
  params.repetition_penalty = 1.0f;
  params.frequency_penalty = 0.6f;
  EXPECT_EQ(SampleOnce(sampler, params, 0, kLogits, {1, 1, 1}, {}), 1);     // not the prompt
  EXPECT_EQ(SampleOnce(sampler, params, 0, kLogits, {}, {1, 3, 1, 3}), 2);  // 2 - 1.2 < 1
  params.frequency_penalty = 0.0f;
  params.logit_bias = {{4, 50.0f}};
  EXPECT_EQ(SampleOnce(sampler, params, 0), 4);
}

TEST(Sampler, TheSmallestTemperatureIsGreedy) {
  Sampler sampler = MakeSampler();
  SamplingParams params;
  params.temperature = std::numeric_limits<float>::denorm_min();
  for (uint64_t step = 0; step < 20; ++step)
    EXPECT_EQ(SampleOnce(sampler, params, step, {0, 2, 1, 1.999f, 0, 9}), 1);
}

TEST(Sampler, RowsThatAreNotNumbersGiveNoToken) {
  Sampler sampler = MakeSampler();
  SamplingParams params;
  EXPECT_EQ(SampleOnce(sampler, params, 0, {0, NAN, 0, 0, 0, 0}), -1);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SampleOnce(sampler, params, 0, {-inf, -inf, -inf, -inf, -inf, 3}), -1);
}

TEST(Sampler, ValidationNamesTheField) {
  const auto fails = [](auto set, const char* field) {
    SamplingParams params;
    set(params);
    const Status status = ValidateSampling(params, kVocab);
    ASSERT_FALSE(status.has_value()) << field;
    EXPECT_NE(status.error().message.find(field), std::string::npos) << status.error().message;
  };
  fails([](auto& p) { p.temperature = -0.1f; }, "temperature");
  fails([](auto& p) { p.temperature = NAN; }, "temperature");
  fails([](auto& p) { p.top_p = 0.0f; }, "top_p");
  fails([](auto& p) { p.top_k = -1; }, "top_k");
  fails([](auto& p) { p.min_p = 1.5f; }, "min_p");
  fails([](auto& p) { p.repetition_penalty = 0.0f; }, "repetition_penalty");
  fails([](auto& p) { p.logit_bias = {{6, 1.0f}}; }, "logit_bias");
  fails([](auto& p) { p.logit_bias = {{0, INFINITY}}; }, "logit_bias");
  EXPECT_TRUE(ValidateSampling({}, kVocab).has_value());
}

}  // namespace
}  // namespace carpool
