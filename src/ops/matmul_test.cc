#include "ops/matmul.h"
#include "ops/normal_values_testing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/aligned.h"
#include "quant/random_matrix.h"

namespace carpool {
namespace {

using testing::NormalValues;

void ExpectNear(const OwnedMatrix& w, const float* x, const float* y) {
  std::vector<float> row(w.view.cols);
  for (size_t o = 0; o < w.view.rows; ++o) {
    DequantizeRow(w.view, o, row.data());
    double exact = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < row.size(); ++i) {
      exact += static_cast<double>(row[i]) * static_cast<double>(x[i]);
      magnitude += std::fabs(static_cast<double>(row[i]) * static_cast<double>(x[i]));
    }
    ASSERT_NEAR(static_cast<double>(y[o]), exact, 1e-6 * magnitude) << "output " << o;
  }
}

TEST(MatMul, OddSizesAndStridesForAnyThreadCountWithPoisonedScratch) {
  const OwnedMatrix source = RandomMatrix(WeightFormat::kBF16, 203, 77, 1);
  const PackedMatrix w = *PackedMatrix::Pack(source.view);
  const size_t rows = 70, x_stride = 80, y_stride = 211;
  const auto x = NormalValues(rows * x_stride, 2);
  std::vector<float> first;
  for (const size_t threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Arena arena;
    arena.set_poison(true);
    OpContext context{pool, arena};
    std::vector<float> y(rows * y_stride, -7.0f);
    MatMul({x.data(), rows, 77, x_stride}, w, {y.data(), rows, 203, y_stride}, context);
    for (size_t r = 0; r < rows; ++r) {
      ExpectNear(source, x.data() + r * x_stride, y.data() + r * y_stride);
      for (size_t o = 203; o < y_stride; ++o)
        ASSERT_EQ(y[r * y_stride + o], -7.0f) << "wrote past a row";
    }
    if (first.empty()) first = y;
    EXPECT_EQ(y, first) << threads;
    // One row alone has the same bits.
    std::vector<float> alone(203);
    MatMul({x.data() + 69 * x_stride, 1, 77, x_stride}, w, {alone.data(), 1, 203}, context);
    EXPECT_EQ(std::memcmp(alone.data(), y.data() + 69 * y_stride, 203 * sizeof(float)), 0);
  }
}

TEST(MatMul, BigEnoughToForkGivesTheSameBitsOnEveryThreadCount) {
  const OwnedMatrix source = RandomMatrix(WeightFormat::kNVFP4, 1024, 512, 1);
  const PackedMatrix w = *PackedMatrix::Pack(source.view);
  const auto x = NormalValues(3 * 512, 2);
  for (const Activations activations : {Activations::kF32, Activations::kQ8}) {
    std::vector<float> first;
    for (const size_t threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Arena arena;
      arena.set_poison(true);
      OpContext context{pool, arena, activations};
      std::vector<float> y(3 * 1024);
      MatMul({x.data(), 3, 512}, w, {y.data(), 3, 1024}, context);
      EXPECT_EQ(pool.regions(), threads > 1 ? 1u : 0u);
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << threads;
    }
    if (activations == Activations::kF32) ExpectNear(source, x.data() + 512, first.data() + 1024);
  }
}

TEST(MatMul, ManyTargetsOfMixedFormatsEqualSingleCalls) {
  std::vector<OwnedMatrix> sources;
  std::vector<PackedMatrix> weights;
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kFP8, WeightFormat::kNVFP4, WeightFormat::kQ8}) {
    sources.push_back(RandomMatrix(format, 100 + 50 * sources.size(), 96, 5));
    weights.push_back(*PackedMatrix::Pack(sources.back().view, format));
  }
  const auto x = NormalValues(5 * 96, 2);
  ThreadPool pool(2);
  Arena arena;
  arena.set_poison(true);
  OpContext context{pool, arena, Activations::kQ8};
  std::vector<std::vector<float>> y, alone;
  std::vector<MatMulTarget> targets;
  for (const auto& w : weights) y.emplace_back(5 * w.rows());
  for (size_t j = 0; j < weights.size(); ++j)
    targets.push_back({&weights[j], {y[j].data(), 5, weights[j].rows()}});
  MatMulMany({x.data(), 5, 96}, targets, context);
  for (size_t j = 0; j < weights.size(); ++j) {
    std::vector<float> one(y[j].size());
    MatMul({x.data(), 5, 96}, weights[j], {one.data(), 5, weights[j].rows()}, context);
    EXPECT_EQ(one, y[j]) << j;
  }
  ExpectNear(sources[1], x.data(), y[1].data());
}

TEST(MatMulPerHead, EachHeadMeetsItsOwnSlice) {
  for (const size_t in : {16, 24, 64}) {
    const size_t heads = 5, out = 40, rows = 3, x_stride = in + 8;
    std::vector<OwnedMatrix> sources;
    std::vector<PackedMatrix> weights;
    for (size_t h = 0; h < heads; ++h) {
      sources.push_back(RandomMatrix(WeightFormat::kF32, out, in, h));
      weights.push_back(*PackedMatrix::Pack(sources.back().view));
    }
    const auto x = NormalValues(rows * heads * x_stride, 3);
    ThreadPool pool(2);
    Arena arena;
    arena.set_poison(true);
    OpContext context{pool, arena};
    std::vector<float> y(rows * heads * out);
    MatMulPerHead({x.data(), rows, heads * x_stride}, x_stride, weights,
                  {y.data(), rows, heads * out}, context);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t h = 0; h < heads; ++h) {
        ExpectNear(sources[h], x.data() + (r * heads + h) * x_stride,
                   y.data() + (r * heads + h) * out);
      }
    }
  }
}

}  // namespace
}  // namespace carpool
