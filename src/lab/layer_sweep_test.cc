#include "lab/layer_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carpool {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two layers: the first costs much and saves little, the second the other way round.
std::vector<LayerPoint> TwoLayers() {
  return {{16, 0, 4, 0.000, 40}, {16, 0, 3, 0.010, 38}, {16, 0, 2, 0.030, 30},
          {16, 1, 4, 0.000, 40}, {16, 1, 3, 0.002, 25}, {16, 1, 2, 0.006, 15},
          {4, 0, 4, 0.000, 10},  {4, 0, 3, 0.500, 9}};
}

TEST(LayerSweep, SpendsTheBudgetWhereItSavesMost) {
  EXPECT_THAT(ChooseK0(TwoLayers(), 16, 0.0), ElementsAre(4, 4));
  EXPECT_THAT(ChooseK0(TwoLayers(), 16, 0.002), ElementsAre(4, 3));
  EXPECT_THAT(ChooseK0(TwoLayers(), 16, 0.010), ElementsAre(4, 2));
  // 0.03 for ten experts is a better bargain than 0.01 for two.
  EXPECT_THAT(ChooseK0(TwoLayers(), 16, 0.040), ElementsAre(2, 2));
  EXPECT_THAT(ChooseK0(TwoLayers(), 4, 0.1), ElementsAre(4));
  EXPECT_THAT(ChooseK0(TwoLayers(), 8, 0.1), IsEmpty());
}

TEST(LayerSweep, ProposesEachSettingOnceAndNoUniformOne) {
  EXPECT_THAT(PerLayerPolicies(TwoLayers(), 16, 0.008), ElementsAre("oea:k0=4/3", "oea:k0=4/2"));
  EXPECT_THAT(PerLayerPolicies(TwoLayers(), 16, 9.0), IsEmpty());  // k0=2 everywhere
  EXPECT_THAT(PerLayerPolicies(TwoLayers(), 16, 1e-6), IsEmpty());
}

}  // namespace
}  // namespace carpool
