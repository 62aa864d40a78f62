#include "routing/expert_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace carpool {
namespace {

using ::testing::HasSubstr;

// The example in the EPLB repository's README.
TEST(ExpertPlacementTest, PublishedExample) {
  const std::vector<std::vector<double>> load = {
      {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
      {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
  const std::vector<std::vector<int32_t>> want = {
      {5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
      {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};
  for (size_t l = 0; l < 2; ++l) {
    auto plan = PlanPlacement(load[l], {.physical = 16, .groups = 4, .nodes = 2, .gpus = 8});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->logical_of, want[l]);
  }
}

TEST(ExpertPlacementTest, EverySlotAndReplicaIsListedOnce) {
  uint64_t counter = 0;
  for (const PlacementPlan& p :
       {PlacementPlan{32, 8, 2, 8}, PlacementPlan{24, 1, 1, 4}, PlacementPlan{48, 8, 3, 6}}) {
    std::vector<double> load(16);
    for (double& v : load) v = static_cast<double>(ReplicaHash({1, 2, counter++, 3}) % 1000);
    auto plan = PlanPlacement(load, p);
    ASSERT_TRUE(plan) << plan.error().message;
    std::set<int32_t> seen;
    for (size_t e = 0; e < load.size(); ++e) {
      ASSERT_FALSE(plan->physical_of[e].empty());
      for (const int32_t physical : plan->physical_of[e]) {
        EXPECT_TRUE(seen.insert(physical).second);
        EXPECT_EQ(plan->logical_of[static_cast<size_t>(physical)], static_cast<int32_t>(e));
      }
    }
    EXPECT_EQ(seen.size(), p.physical);
  }
}

TEST(ExpertPlacementTest, PackingIsEvenInCountAndStable) {
  const Packing packing = PackEvenly({5, 5, 4, 3, 2, 1}, 2);
  EXPECT_EQ(packing.pack_of, (std::vector<size_t>{0, 1, 0, 1, 1, 0}));
  const Packing one_each = PackEvenly({1, 9, 5}, 3);
  EXPECT_EQ(one_each.pack_of, (std::vector<size_t>{0, 1, 2}));
}

TEST(ExpertPlacementTest, ReplicaChoices) {
  LayerPlacement placement{{0, 1, 1, 1}, {{0}, {1, 2, 3}}};
  EXPECT_EQ(PhysicalExpert(placement, -1, ReplicaChoice::kHashed, {}), -1);
  EXPECT_EQ(PhysicalExpert(placement, 1, ReplicaChoice::kFirst, {}), 1);
  for (uint64_t pos = 0; pos < 9; ++pos) {
    EXPECT_EQ(PhysicalExpert(placement, 1, ReplicaChoice::kPosition, {0, 0, pos, 0}),
              static_cast<int32_t>(1 + pos % 3));
    EXPECT_EQ(PhysicalExpert(placement, 0, ReplicaChoice::kHashed, {0, 0, pos, 0}), 0);
  }
  std::vector<int> hits(4);
  for (uint64_t pos = 0; pos < 3000; ++pos) {
    const ReplicaKey key{42, 3, pos, pos % 8};
    const int32_t physical = PhysicalExpert(placement, 1, ReplicaChoice::kHashed, key);
    EXPECT_EQ(physical, PhysicalExpert(placement, 1, ReplicaChoice::kHashed, key));
    ++hits[static_cast<size_t>(physical)];
  }
  for (size_t p = 1; p < 4; ++p) EXPECT_NEAR(hits[p], 1000, 120);
  EXPECT_NE(ReplicaHash({1, 0, 0, 0}), ReplicaHash({0, 1, 0, 0}));
}

TEST(ExpertPlacementTest, ErrorsNameTheField) {
  auto error = [](std::vector<double> load, PlacementPlan p) {
    auto plan = PlanPlacement(load, p);
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_THAT(error({}, {4, 1, 1, 1}), HasSubstr("load"));
  EXPECT_THAT(error({1, -1}, {4, 1, 1, 1}), HasSubstr("load[1]"));
  EXPECT_THAT(error({1, 1}, {4, 0, 1, 1}), HasSubstr("groups"));
  EXPECT_THAT(error({1, 1, 1}, {4, 2, 1, 1}), HasSubstr("load: wanted a multiple of 2"));
  EXPECT_THAT(error({1, 1}, {4, 1, 2, 3}), HasSubstr("gpus"));
  EXPECT_THAT(error({1, 1}, {5, 1, 1, 2}), HasSubstr("physical: wanted a multiple of 2"));
  EXPECT_THAT(error({1, 1, 1}, {2, 1, 1, 1}), HasSubstr("physical: wanted at least 3"));
}

}  // namespace
}  // namespace carpool
