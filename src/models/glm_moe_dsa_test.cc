// Golden logits of the tiny GLM-5-shaped model, variants A to E, and exact mode on it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "models/golden_weights_testing.h"
#include "models/model_runner_testing.h"

namespace carpool {
namespace {

using testing::GoldenCheckpoint;
using testing::GoldenTokens;
using testing::Runner;
using testing::TinyGlm;
using testing::Trace;

constexpr size_t kTokens = 24;
constexpr size_t kVocab = 320;

struct Golden {
  const char* name;
  TinyGlm config;
  std::vector<double> last;
  double sum;
  int argmax;
  double squares;  // 0 = not given
};

/// The round-to-nearest NVFP4 recipe of ModelOpt, written back as fp32: what variant E's weights
/// are.
void AddNvfp4(GoldenCheckpoint& c, const std::string& module, size_t rows, size_t cols);

uint8_t EncodeE4M3(float value) {
  uint8_t best = 0;
  float best_error = INFINITY;
  for (int b = 0; b < 0x7F; ++b) {
    const float error = std::fabs(F8E4M3ToFloat(static_cast<uint8_t>(b)) - value);
    if (error < best_error || (error == best_error && (b & 1) == 0)) {
      best_error = error;
      best = static_cast<uint8_t>(b);
    }
  }
  return best;
}

uint8_t EncodeE2M1(float x) {
  static constexpr float kBounds[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float a = std::fabs(x);
  uint8_t code = 0;
  for (uint8_t i = 0; i < 7; ++i) {
    // Ties go to the even code.
    if (a > kBounds[i] || (a == kBounds[i] && (i & 1) == 1)) code = static_cast<uint8_t>(i + 1);
  }
  return static_cast<uint8_t>(code | (x < 0 ? 8 : 0));
}

void AddNvfp4(GoldenCheckpoint& c, const std::string& module, size_t rows, size_t cols) {
  const auto w = testing::GoldenTensor(module + ".weight", {rows, cols});
  float amax = 0;
  for (float v : w) amax = std::max(amax, std::fabs(v));
  const float scale2 = amax / (6.0f * 448.0f);
  std::vector<uint8_t> packed(rows * cols / 2), scales(rows * cols / 16);
  for (size_t b = 0; b < scales.size(); ++b) {
    float block = 0;
    for (size_t i = 0; i < 16; ++i) block = std::max(block, std::fabs(w[b * 16 + i]));
    const float wanted = block == 0 ? 1.0f : std::clamp(block / 6.0f / scale2, 0x1p-9f, 448.0f);
    scales[b] = EncodeE4M3(wanted);
    const float scale = F8E4M3ToFloat(scales[b]) * scale2;
    for (size_t i = 0; i < 16; ++i) {
      const size_t at = b * 16 + i;
      packed[at / 2] = static_cast<uint8_t>(packed[at / 2] |
                                            (EncodeE2M1(w[at] / scale) << (at % 2 == 0 ? 0 : 4)));
    }
  }
  if (module == "model.layers.1.mlp.experts.0.gate_proj") {
    EXPECT_FLOAT_EQ(scale2, 8.052512e-05f);
    const uint8_t first[] = {0xef, 0xe4, 0xbd, 0x55, 0xbf, 0xdb, 0xe7, 0x74};
    EXPECT_TRUE(std::equal(first, first + 8, packed.begin()));
  }
  c.AddRaw(module + ".weight", "U8", {rows, cols / 2}, packed.data(), packed.size());
  c.AddRaw(module + ".weight_scale", "F8_E4M3", {rows, cols / 16}, scales.data(), scales.size());
  c.AddRaw(module + ".weight_scale_2", "F32", {}, &scale2, sizeof(scale2));
}

std::vector<Golden> Goldens() {
  return {
      {"A", {}, {-1.36838, 0.64910, -0.59202, -1.15132, 0.04812, 0.13414}, -17.8797, 21, 7671.684},
      {"B",
       {.index_topk = 64},
       {-0.23545, -1.89222, -0.03750, 1.06108, -1.52681, -0.44068},
       -24.2825,
       8,
       7620.070},
      {"C",
       {.index_topk_freq = 2, .index_skip_topk_offset = 2},
       {-1.62437, 0.66202, -0.69373, -0.86803, -0.08045, 0.11636},
       -5.6720,
       36,
       7659.431},
      {"D",
       {.n_group = 4, .topk_group = 2},
       {0.47636, 0.22581, 0.14803, 0.44560, 0.57752, 2.86541},
       23.6806,
       36,
       7662.620},
      {"E",
       {.nvfp4_experts = true},
       {-1.16790, 0.10440, -1.09945, -0.85298, -0.06958, 0.21662},
       2.3643,
       36,
       0},
      {"A with half-split indexer rope",
       {.index_rope_interleave = false},
       {0.39818, -0.38656, -0.54222, -0.04506, 0.22054, 1.12084},
       18.2710,
       16,
       7672.465},
  };
}

TEST(GoldenWeights, GeneratorCheckValues) {
  const auto head = testing::GoldenTensor("lm_head.weight", {320, 64});
  EXPECT_FLOAT_EQ(head[0], 0.21338002f);
  EXPECT_FLOAT_EQ(head[1], 0.20989683f);
  EXPECT_FLOAT_EQ(head[2], -0.19838507f);
  const auto norm = testing::GoldenTensor("model.norm.weight", {64});
  EXPECT_FLOAT_EQ(norm[0], 0.90973759f);
  EXPECT_FLOAT_EQ(norm[1], 0.92756403f);
  EXPECT_EQ(GoldenTokens(8), (std::vector<int32_t>{1, 11, 35, 73, 125, 191, 271, 45}));
}

TEST(GlmMoeDsa, GoldenLogitsOfEveryVariant) {
  for (const Golden& golden : Goldens()) {
    SCOPED_TRACE(golden.name);
    GoldenCheckpoint checkpoint("golden");
    golden.config.Fill(checkpoint, AddNvfp4);
    checkpoint.Write(golden.config.ConfigJson());
    Runner runner(checkpoint.dir());
    const auto logits = runner.Prefill(GoldenTokens(kTokens), kTokens);
    const float* last = logits.data() + (kTokens - 1) * kVocab;
    float max = 0;
    double sum = 0, squares = 0;
    for (float l : logits) {
      max = std::max(max, std::fabs(l));
      squares += static_cast<double>(l) * static_cast<double>(l);
    }
    for (size_t i = 0; i < kVocab; ++i) sum += last[i];
    const double bound = 2e-4 * max;
    for (size_t i = 0; i < golden.last.size(); ++i)
      EXPECT_NEAR(last[i], golden.last[i], bound) << i;
    EXPECT_NEAR(sum, golden.sum, 0.01);
    EXPECT_EQ(std::max_element(last, last + kVocab) - last, golden.argmax);
    if (golden.squares != 0) {
      EXPECT_NEAR(squares, golden.squares, 0.05);
    }
    const bool sparse = golden.config.index_topk < kTokens;
    EXPECT_EQ(runner.stats().sparse_attention_rows > 0, sparse);
  }
}

TEST(GlmMoeDsa, GoldenExpertsWeightsAndKeys) {
  GoldenCheckpoint checkpoint("experts");
  TinyGlm tiny;
  tiny.Fill(checkpoint);
  checkpoint.Write(tiny.ConfigJson());
  Runner runner(checkpoint.dir());
  Trace trace;
  runner.set_observer(&trace);
  const auto logits = runner.Prefill(GoldenTokens(kTokens), kTokens);
  const std::map<int, float> want[3] = {
      {{1, 0.617727f}, {5, 0.499742f}, {10, 0.702637f}, {13, 0.679893f}},
      {{2, 0.654314f}, {6, 0.624454f}, {11, 0.567698f}, {13, 0.653534f}},
      {{6, 0.614046f}, {9, 0.628316f}, {10, 0.627084f}, {11, 0.630554f}}};
  for (size_t layer = 0; layer < 3; ++layer) {
    const auto& got = trace.experts[layer].back();
    ASSERT_EQ(got.size(), want[layer].size());
    for (const auto& [expert, weight] : want[layer]) {
      ASSERT_TRUE(got.count(expert)) << layer << " " << expert;
      EXPECT_NEAR(got.at(expert), weight, 2e-5);
    }
  }
  const std::set<uint32_t> keys[4] = {{0, 2, 5, 7, 14, 15, 17, 19},
                                      {0, 2, 3, 17, 18, 19, 20, 23},
                                      {5, 7, 8, 12, 13, 15, 21, 22},
                                      {8, 9, 10, 14, 15, 16, 18, 21}};
  for (size_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(trace.selected_keys[layer][kTokens - 1], keys[layer]) << layer;
  const int argmax[kTokens] = {19, 57, 36,  202, 124, 142, 105, 212, 7,   108, 270, 245,
                               8,  67, 125, 309, 245, 16,  252, 272, 193, 184, 269, 21};
  for (size_t t = 0; t < kTokens; ++t) {
    const float* row = logits.data() + t * kVocab;
    EXPECT_EQ(std::max_element(row, row + kVocab) - row, argmax[t]) << t;
  }
}

TEST(GlmMoeDsa, GoldenExpertsAndKeysOfTheOtherVariants) {
  const auto run = [](TinyGlm tiny, Trace& trace) {
    GoldenCheckpoint checkpoint("variants");
    tiny.Fill(checkpoint, AddNvfp4);
    checkpoint.Write(tiny.ConfigJson());
    Runner runner(checkpoint.dir());
    runner.set_observer(&trace);
    runner.Prefill(GoldenTokens(kTokens), kTokens);
  };
  const auto ids = [](const std::map<int, float>& row) {
    std::set<int> out;
    for (const auto& [expert, weight] : row) out.insert(expert);
    return out;
  };
  Trace c, d, e;
  run({.index_topk_freq = 2, .index_skip_topk_offset = 2}, c);
  EXPECT_EQ(c.selected_keys[3][kTokens - 1], (std::set<uint32_t>{9, 10, 14, 15, 16, 17, 18, 23}));
  run({.n_group = 4, .topk_group = 2}, d);
  EXPECT_EQ(ids(d.experts[0].back()), (std::set<int>{5, 6, 12, 13}));
  EXPECT_EQ(ids(d.experts[1].back()), (std::set<int>{5, 6, 7, 9}));
  EXPECT_EQ(ids(d.experts[2].back()), (std::set<int>{4, 6, 9, 11}));
  EXPECT_NEAR(d.experts[0].back()[13], 0.762067, 2e-5);
  run({.nvfp4_experts = true}, e);
  EXPECT_EQ(ids(e.experts[1].back()), (std::set<int>{6, 11, 13, 15}));
}

class ExactMode : public ::testing::Test {
 protected:
  ExactMode() : checkpoint_("exact") {
    tiny_.nvfp4_experts = true;
    tiny_.Fill(checkpoint_, AddNvfp4);
    checkpoint_.Write(tiny_.ConfigJson());
  }
  TinyGlm tiny_;
  GoldenCheckpoint checkpoint_;
};

TEST_F(ExactMode, WholePrefillEqualsChunksEqualsTokenByToken) {
  const auto ids = GoldenTokens(40);
  const auto whole = Runner(checkpoint_.dir()).Prefill(ids, 40);
  for (size_t chunk : {1, 3, 16, 17}) {
    for (size_t threads : {1, 2, 3}) {
      EXPECT_EQ(Runner(checkpoint_.dir(), threads).Prefill(ids, chunk), whole)
          << chunk << " " << threads;
    }
  }
}

TEST_F(ExactMode, ARowDoesNotDependOnItsBatchMates) {
  // Sequence 0 decodes alone, then in batches of 2 ... 33 beside sequences of other lengths and
  // tokens.
  const auto ids = GoldenTokens(20);
  Runner alone(checkpoint_.dir());
  std::vector<std::vector<float>> want;
  for (uint32_t i = 0; i < 20; ++i) want.push_back(alone.Step({{0, i, ids[i], RowPhase::kDecode}}));
  for (size_t threads : {1, 2, 3}) {
    for (size_t batch : {2, 3, 5, 8, 16, 17, 33}) {
      Runner runner(checkpoint_.dir(), threads);
      for (uint32_t i = 0; i < 20; ++i) {
        std::vector<Runner::RowSpec> specs;
        for (uint32_t b = 0; b < batch; ++b) {
          const uint32_t position = b % 3 == 2 ? i / 2 : i;  // some lag behind
          if (b % 3 == 2 && i % 2 == 1) continue;            // ... and sit out every other step
          const int32_t token =
              b == 0 ? ids[i] : static_cast<int32_t>((17 * b + 31 * position) % kVocab);
          specs.push_back({b, position, token, RowPhase::kDecode});
        }
        const auto logits = runner.Step(specs);
        ASSERT_TRUE(std::equal(want[i].begin(), want[i].end(), logits.begin()))
            << threads << " " << batch << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace carpool
