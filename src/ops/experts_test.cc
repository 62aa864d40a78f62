#include "ops/experts.h"
#include "ops/normal_values_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "quant/random_matrix.h"

namespace carpool {
namespace {

using testing::NormalValues;

struct Bank {
  Bank(WeightFormat format, size_t experts, size_t width, size_t hidden, size_t shared_width) {
    const auto add = [&](WeightFormat f, size_t w) {
      ExpertSource s;
      for (auto* m : {&s.gate, &s.up, &s.down}) {
        const bool down = m == &s.down;
        owned.push_back(RandomMatrix(f, down ? hidden : w, down ? w : hidden, owned.size()));
        *m = owned.back().view;
      }
      sources.push_back(s);
    };
    owned.reserve(3 * (experts + 1));
    for (size_t e = 0; e < experts; ++e) add(format, width);
    if (shared_width > 0) add(WeightFormat::kBF16, shared_width);
    ThreadPool pool(2);
    auto packed = ExpertBank::Pack({sources.data(), experts},
                                   shared_width > 0 ? &sources.back() : nullptr, pool);
    EXPECT_TRUE(packed.has_value());
    bank = std::move(packed).value();
  }
  std::vector<OwnedMatrix> owned;
  std::vector<ExpertSource> sources;
  ExpertBank bank;
};

/// Row-major assignments and the plan made from them.
struct Plan {
  explicit Plan(const std::vector<std::vector<int32_t>>& ids) {
    std::vector<std::array<size_t, 2>> slots;  // row, position
    for (size_t r = 0; r < ids.size(); ++r) {
      for (size_t k = 0; k < ids[r].size(); ++k) slots.push_back({r, k});
    }
    std::vector<size_t> order(slots.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto id = [&](size_t s) { return ids[slots[s][0]][slots[s][1]]; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return id(a) < id(b); });
    slot_of.resize(slots.size());
    for (size_t s = 0; s < order.size(); ++s) {
      if (experts.empty() || experts.back() != id(order[s])) {
        experts.push_back(id(order[s]));
        offsets.push_back(static_cast<uint32_t>(s));
      }
      row_of_slot.push_back(static_cast<int32_t>(slots[order[s]][0]));
      weight_of_slot.push_back(0.1f + 0.05f * static_cast<float>(slots[order[s]][1]));
      slot_of[order[s]] = static_cast<uint32_t>(s);
    }
    offsets.push_back(static_cast<uint32_t>(slots.size()));
    row_offsets.push_back(0);
    for (const auto& row : ids)
      row_offsets.push_back(row_offsets.back() + static_cast<uint32_t>(row.size()));
  }
  ExpertPlan view() const {
    return {experts, offsets, row_of_slot, weight_of_slot, row_offsets, slot_of};
  }
  std::vector<int32_t> experts, row_of_slot;
  std::vector<uint32_t> offsets, row_offsets, slot_of;
  std::vector<float> weight_of_slot;
};

std::vector<std::vector<int32_t>> RandomIds(size_t rows, size_t experts, size_t k, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> ids(rows);
  for (auto& row : ids) {
    std::vector<int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    row.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k));
  }
  return ids;
}

std::vector<double> Multiply(const StoredMatrix& w, const std::vector<double>& x) {
  std::vector<float> row(w.cols);
  std::vector<double> y(w.rows, 0.0);
  for (size_t o = 0; o < w.rows; ++o) {
    DequantizeRow(w, o, row.data());
    for (size_t i = 0; i < w.cols; ++i) y[o] += static_cast<double>(row[i]) * x[i];
  }
  return y;
}

/// The definition, in double.
std::vector<double> Expert(const ExpertSource& e, const float* x) {
  const std::vector<double> in(x, x + e.gate.cols);
  auto mid = Multiply(e.gate, in);
  const auto up = Multiply(e.up, in);
  for (size_t i = 0; i < mid.size(); ++i) mid[i] = mid[i] / (1.0 + std::exp(-mid[i])) * up[i];
  return Multiply(e.down, mid);
}

std::vector<float> RunBank(const Bank& b, const std::vector<float>& x, const Plan& plan,
                           size_t rows, size_t threads, Activations activations,
                           size_t* regions = nullptr) {
  ThreadPool pool(threads);
  Arena arena;
  arena.set_poison(true);
  OpContext context{pool, arena, activations};
  const size_t hidden = b.bank.hidden();
  std::vector<float> y(rows * hidden, std::nanf(""));
  RunExperts(b.bank, {x.data(), rows, hidden}, plan.view(), {y.data(), rows, hidden}, context);
  if (regions != nullptr) *regions = pool.regions();
  return y;
}

double RelativeError(const Bank& b, const std::vector<float>& x,
                     const std::vector<std::vector<int32_t>>& ids, const std::vector<float>& y) {
  const size_t hidden = b.bank.hidden();
  double difference = 0.0, norm = 0.0;
  for (size_t r = 0; r < ids.size(); ++r) {
    std::vector<double> expected(hidden, 0.0);
    const auto add = [&](const ExpertSource& e, double weight) {
      const auto out = Expert(e, x.data() + r * hidden);
      for (size_t i = 0; i < hidden; ++i) expected[i] += weight * out[i];
    };
    for (size_t k = 0; k < ids[r].size(); ++k) {
      add(b.sources[static_cast<size_t>(ids[r][k])],
          static_cast<double>(0.1f + 0.05f * static_cast<float>(k)));
    }
    if (b.bank.shared() != nullptr) add(b.sources.back(), 1.0);
    for (size_t i = 0; i < hidden; ++i) {
      const double d = static_cast<double>(y[r * hidden + i]) - expected[i];
      difference += d * d;
      norm += expected[i] * expected[i];
    }
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

TEST(RunExperts, MatchesTheDefinitionForEveryFormatAndOddSizes) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFP8,
                                    WeightFormat::kNVFP4, WeightFormat::kMXFP4}) {
    const size_t unit = format == WeightFormat::kMXFP4 ? 32 : 16;
    const size_t width = format == WeightFormat::kBF16 ? 37 : 3 * unit,
                 hidden = format == WeightFormat::kBF16 ? 75 : 5 * unit;
    const Bank b(format, 7, width, hidden, 40);
    auto ids = RandomIds(9, 7, 3, 1);
    ids[4].clear();  // a padding row
    const auto x = NormalValues(9 * hidden, 2);
    const Plan plan(ids);
    const auto y = RunBank(b, x, plan, 9, 2, Activations::kF32);
    EXPECT_LT(RelativeError(b, x, ids, y), 2e-6) << WeightFormatName(format);
    EXPECT_LT(RelativeError(b, x, ids, RunBank(b, x, plan, 9, 2, Activations::kQ8)), 1.5e-2)
        << WeightFormatName(format);
  }
}

TEST(RunExperts, ARowsBitsDependNeitherOnItsBatchNorOnTheThreads) {
  const Bank b(WeightFormat::kNVFP4, 16, 96, 160, 64);
  const size_t rows = 200, hidden = 160;
  auto ids = RandomIds(rows, 16, 4, 3);
  for (auto& row : ids) {  // skewed: expert 5 has nearly every row
    if (std::find(row.begin(), row.end(), 5) == row.end()) row[1] = 5;
  }
  const auto x = NormalValues(rows * hidden, 4);
  for (const Activations activations : {Activations::kF32, Activations::kQ8}) {
    const auto y = RunBank(b, x, Plan(ids), rows, 1, activations);
    size_t regions = 0;
    EXPECT_EQ(RunBank(b, x, Plan(ids), rows, 2, activations, &regions), y);
    EXPECT_EQ(regions, 2u);
    EXPECT_EQ(RunBank(b, x, Plan(ids), rows, 3, activations), y);
    for (const size_t r : {size_t{0}, size_t{17}, rows - 1}) {
      const std::vector<float> one(x.begin() + static_cast<std::ptrdiff_t>(r * hidden),
                                   x.begin() + static_cast<std::ptrdiff_t>((r + 1) * hidden));
      const auto alone = RunBank(b, one, Plan({ids[r]}), 1, 2, activations);
      EXPECT_EQ(std::memcmp(alone.data(), y.data() + r * hidden, hidden * sizeof(float)), 0) << r;
    }
  }
}

TEST(RunExperts, NoActiveExpertLeavesTheSharedPartOrZero) {
  const Bank with(WeightFormat::kNVFP4, 4, 32, 64, 32), without(WeightFormat::kNVFP4, 4, 32, 64, 0);
  const auto x = NormalValues(2 * 64, 4);
  const std::vector<std::vector<int32_t>> ids(2);
  EXPECT_LT(RelativeError(with, x, ids, RunBank(with, x, Plan(ids), 2, 2, Activations::kF32)),
            2e-6);
  EXPECT_EQ(RunBank(without, x, Plan(ids), 2, 2, Activations::kF32),
            std::vector<float>(2 * 64, 0.0f));
}

TEST(ExpertBank, NamesTheTensorThatDoesNotFit) {
  Bank b(WeightFormat::kNVFP4, 3, 32, 64, 0);
  ThreadPool pool(2);
  auto sources = b.sources;
  sources[2].up.rows = 16;
  sources[2].up.name = "experts.2.up_proj";
  auto bank = ExpertBank::Pack(sources, nullptr, pool);
  ASSERT_FALSE(bank.has_value());
  EXPECT_NE(bank.error().message.find("experts.2.up_proj"), std::string::npos);
  sources = b.sources;
  const OwnedMatrix other = RandomMatrix(WeightFormat::kBF16, 64, 32, 1);
  sources[1].down = other.view;
  EXPECT_EQ(ExpertBank::Pack(sources, nullptr, pool).error().code, ErrorCode::kUnsupported);
}

// Sources of experts whose portion is done are overwritten, as pages given back might be.
TEST(ExpertBank, ReadsNoSourceAfterItsPortion) {
  Bank b(WeightFormat::kNVFP4, 21, 32, 64, 0);
  ThreadPool pool(1);
  Bank copy(WeightFormat::kNVFP4, 21, 32, 64, 0);
  size_t calls = 0;
  auto bank = ExpertBank::Pack(copy.sources, nullptr, pool, {.after_portion = [&] {
                                 ++calls;
                                 for (size_t e = 0; e < std::min<size_t>(8 * calls, 21); ++e)
                                   std::memset(const_cast<std::byte*>(copy.sources[e].up.data),
                                               0x55, copy.sources[e].up.data_bytes);
                               }});
  ASSERT_TRUE(bank.has_value());
  EXPECT_EQ(calls, 3u);
  copy.bank = std::move(bank).value();
  const std::vector<float> x = NormalValues(3 * 64, 1);
  const Plan plan({{0, 7, 8, 20}, {1, 15, 16, 19}, {2, 3, 4, 5}});
  EXPECT_EQ(RunBank(copy, x, plan, 3, 1, Activations::kF32),
            RunBank(b, x, plan, 3, 1, Activations::kF32));
}

}  // namespace
}  // namespace carpool
