// Attention, indexer and row-wise ops against their readable twins, with poisoned scratch.
#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/elementwise.h"
#include "ops/index_scores.h"
#include "ops/reference.h"

namespace carpool {
namespace {

std::vector<float> Random(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

/// NaN before and behind what an op may touch.
std::vector<float> Guarded(std::span<const float> values) {
  std::vector<float> v(16, NAN);
  v.insert(v.end(), values.begin(), values.end());
  v.insert(v.end(), 16, NAN);
  return v;
}

TEST(Elementwise, NormsAndSiluMatchTheirTwinsForEveryLength) {
  for (size_t n = 1; n <= 67; ++n) {
    const auto x = Random(n, 1), w = Random(n, 2), b = Random(n, 3);
    auto rms = Guarded(x), layer = Guarded(x), silu = Guarded(x);
    RmsNorm({rms.data() + 16, 1, n}, w, 1e-5f, {rms.data() + 16, 1, n});
    LayerNorm({layer.data() + 16, 1, n}, w, b, 1e-6f, {layer.data() + 16, 1, n});
    SiluMul({silu.data() + 16, 1, n}, {w.data(), 1, n});
    const auto want_rms = reference::RmsNorm(x, w, 1e-5),
               want_layer = reference::LayerNorm(x, w, b, 1e-6),
               want_silu = reference::SiluMul(x, w);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(rms[16 + i], want_rms[i], 1e-5) << n;
      // A single value has variance 0: x - mean is rounding noise over sqrt(eps).
      ASSERT_NEAR(layer[16 + i], want_layer[i], 2e-4) << n;
      ASSERT_NEAR(silu[16 + i], want_silu[i], 1e-5) << n;
    }
    for (const auto& v : {rms, layer, silu}) {
      ASSERT_TRUE(std::isnan(v[15]) && std::isnan(v[16 + n])) << n;
    }
  }
}

TEST(Elementwise, RopeVectors) {
  const float inv_freq[] = {1.0f, 0.1f, 0.01f, 0.001f};
  std::vector<float> cos, sin;
  for (float f : inv_freq) {
    cos.push_back(std::cos(3 * f));
    sin.push_back(std::sin(3 * f));
  }
  float interleaved[] = {1, 2, 3, 4, 5, 6, 7, 8}, half[] = {1, 2, 3, 4, 5, 6, 7, 8};
  ApplyRope(interleaved, cos, sin, true);
  ApplyRope(half, cos, sin, false);
  const double want_first[] = {-1.272233, 1.683929, 4.817777, 6.975969};
  const double want_second[] = {-1.838865, 4.707907, 6.147278, 8.020964};
  const double want_half[] = {-1.695593, 0.137552, 2.788682, 3.975982,
                              -4.808842, 6.323059, 7.086837, 8.011964};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(interleaved[2 * i], want_first[i], 2e-6);
    EXPECT_NEAR(interleaved[2 * i + 1], want_second[i], 2e-6);
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(half[i], want_half[i], 2e-6);
}

TEST(Attend, LatentMatchesItsTwinForEveryKeyCountAndShape) {
  struct Shape {
    size_t heads, latent, rope;
  };
  ThreadPool pool(2);
  Arena arena;
  arena.set_poison(true);
  OpContext context{pool, arena};
  for (const Shape s :
       {Shape{1, 8, 8}, Shape{4, 64, 16}, Shape{5, 32, 8}, Shape{9, 24, 2}, Shape{64, 512, 64}}) {
    const size_t width = RoundUp(s.latent + s.rope, kAttentionPad);
    for (size_t n : {1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 130}) {
      auto keys = Random(n * width, 11);
      auto q = Random(2 * s.heads * width, 12);
      for (size_t i = 0; i < keys.size(); ++i)
        keys[i] = i % width < s.latent + s.rope ? keys[i] : 0.0f;
      std::vector<const float*> pointers;
      for (size_t t = 0; t < n; ++t) pointers.push_back(keys.data() + t * width);
      std::vector<float> out(2 * s.heads * s.latent, NAN);
      // Two rows: one sees all keys, the other only the first.
      const AttentionRow rows[] = {
          {q.data(), pointers.data(), n, out.data()},
          {q.data() + s.heads * width, pointers.data(), 1, out.data() + s.heads * s.latent}};
      const float scale = 1.0f / std::sqrt(static_cast<float>(s.latent + s.rope));
      Attend(rows,
             {.heads = s.heads,
              .heads_per_kv = s.heads,
              .key_width = width,
              .value_width = s.latent,
              .scale = scale},
             context);
      for (size_t r = 0; r < 2; ++r) {
        for (size_t h = 0; h < s.heads; ++h) {
          const std::span<const float* const> seen(pointers.data(), rows[r].num_keys);
          const auto want = reference::Attend({rows[r].q + h * width, width}, seen, seen, s.latent,
                                              scale, -INFINITY);
          for (size_t i = 0; i < s.latent; ++i)
            ASSERT_NEAR(rows[r].out[h * s.latent + i], want[i], 2e-5) << n;
        }
      }
    }
  }
}

TEST(Attend, GroupedHeadsAndSinksMatchTheirTwin) {
  ThreadPool pool(2);
  Arena arena;
  arena.set_poison(true);
  OpContext context{pool, arena};
  constexpr size_t kWidth = 32;
  for (const size_t kv_heads : {1, 2, 3}) {
    for (const size_t per_kv : {1, 2, 3, 4, 5, 7, 8, 12}) {
      const size_t heads = kv_heads * per_kv, n = 37, entry = kv_heads * 2 * kWidth;
      const auto cache = Random(n * entry, 31), q = Random(heads * kWidth, 32),
                 sinks = Random(heads, 33, 3.0f);
      std::vector<const float*> pointers;
      for (size_t t = 0; t < n; ++t) pointers.push_back(cache.data() + t * entry);
      for (const bool sink : {false, true}) {
        std::vector<float> out(heads * kWidth, NAN);
        const AttentionRow row{q.data(), pointers.data(), n, out.data()};
        Attend({&row, 1},
               {heads, per_kv, kWidth, kWidth, 2 * kWidth, kWidth, 0.3f,
                sink ? sinks.data() : nullptr},
               context);
        for (size_t h = 0; h < heads; ++h) {
          std::vector<const float*> keys, values;
          for (const float* p : pointers) {
            keys.push_back(p + h / per_kv * 2 * kWidth);
            values.push_back(keys.back() + kWidth);
          }
          const auto want = reference::Attend({q.data() + h * kWidth, kWidth}, keys, values, kWidth,
                                              0.3f, sink ? sinks[h] : -INFINITY);
          for (size_t i = 0; i < kWidth; ++i)
            ASSERT_NEAR(out[h * kWidth + i], want[i], 2e-5) << kv_heads << " " << per_kv;
        }
      }
    }
  }
}

TEST(Attend, BitsDependOnNeitherThreadsNorBatchMates) {
  constexpr size_t kHeads = 24, kLatent = 48, kWidth = 64, kKeys = 70;
  const auto keys = Random(kKeys * kWidth, 13), q = Random(kHeads * kWidth, 14);
  std::vector<const float*> pointers;
  for (size_t t = 0; t < kKeys; ++t) pointers.push_back(keys.data() + t * kWidth);
  const auto run = [&](size_t threads, size_t rows) {
    ThreadPool pool(threads);
    Arena arena;
    OpContext context{pool, arena};
    std::vector<float> out(rows * kHeads * kLatent, NAN);
    std::vector<AttentionRow> all;
    for (size_t r = 0; r < rows; ++r)
      all.push_back({q.data(), pointers.data(), kKeys - r, out.data() + r * kHeads * kLatent});
    Attend(all,
           {.heads = kHeads,
            .heads_per_kv = kHeads,
            .key_width = kWidth,
            .value_width = kLatent,
            .scale = 0.2f},
           context);
    out.resize(kHeads * kLatent);
    return out;
  };
  const auto alone = run(1, 1);
  for (size_t threads : {1, 2, 3}) {
    for (size_t rows : {1, 2, 9}) EXPECT_EQ(run(threads, rows), alone) << threads << " " << rows;
  }
}

TEST(Attend, HugeScoresDoNotOverflow) {
  ThreadPool pool(1);
  Arena arena;
  OpContext context{pool, arena};
  std::vector<float> key_a(16, 100.0f), key_b(16, -100.0f), q(16, 100.0f), out(8, NAN);
  const float* keys[] = {key_b.data(), key_a.data()};
  const AttentionRow row{q.data(), keys, 2, out.data()};
  Attend({&row, 1},
         {.heads = 1, .heads_per_kv = 1, .key_width = 16, .value_width = 8, .scale = 1.0f},
         context);
  for (float v : out) EXPECT_EQ(v, 100.0f);
}

TEST(IndexScores, MatchTheirTwinForEveryHeadCountAndDim) {
  for (size_t heads : {1, 2, 3, 4, 5, 8, 13, 32}) {
    for (size_t dim : {2, 16, 32, 128}) {
      const auto q = Random(heads * dim, 21), w = Random(heads, 22),
                 keys = Random(3 * dim * kIndexGroup, 23);
      const float* groups[] = {keys.data(), keys.data() + dim * kIndexGroup,
                               keys.data() + 2 * dim * kIndexGroup};
      float scores[3 * kIndexGroup], alone[kIndexGroup];
      IndexScores(q.data(), w.data(), heads, dim, 0.25f, groups, scores);
      for (size_t t = 0; t < 3 * kIndexGroup; ++t) {
        const float* group = groups[t / kIndexGroup];
        std::vector<float> key;
        for (size_t i = 0; i < dim; ++i) key.push_back(group[i * kIndexGroup + t % kIndexGroup]);
        const double want = reference::IndexScore(q, w, key, 0.25);
        ASSERT_NEAR(scores[t], want, 1e-4 * (1 + std::fabs(want))) << heads << " " << dim;
      }
      for (size_t g = 0; g < 3; ++g) {
        IndexScores(q.data(), w.data(), heads, dim, 0.25f, {groups + g, 1}, alone);
        for (size_t t = 0; t < kIndexGroup; ++t) ASSERT_EQ(alone[t], scores[g * kIndexGroup + t]);
      }
    }
  }
}

TEST(SelectTopPositions, TiesGoToTheLowerPositionAndNanLosesAlways) {
  std::mt19937 rng(5);
  for (size_t n : {1, 2, 7, 64, 65, 300, 512, 513, 5000}) {
    for (size_t k : {1, 2, 8, 64, 299}) {
      std::vector<float> scores(n);
      for (float& s : scores)
        s = static_cast<float>(static_cast<int>(rng() % 9) - 4);  // many ties, zeros of both signs
      if (n > 3) {
        scores[1] = NAN;
        scores[2] = -0.0f;
        scores[3] = -std::numeric_limits<float>::infinity();
      }
      std::vector<uint64_t> scratch(n);
      std::vector<uint32_t> selected(std::min(n, k));
      const size_t count = SelectTopPositions(scores, k, scratch, selected);
      ASSERT_EQ(count, std::min(n, k));
      EXPECT_EQ(selected, reference::TopPositions(scores, k)) << n << " " << k;
    }
  }
}

}  // namespace
}  // namespace carpool
