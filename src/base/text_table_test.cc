#include "base/text_table.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

TEST(TextTable, AlignsByCodePointsAndCutsTrailingBlanks) {
  TextTable table({"policy", "T"});
  table.AddRow({"vanilla", "82.0"});
  table.AddRow({"oea:k0=3 µ"});
  EXPECT_EQ(table.Render(),
            "policy         T\n"
            "──────────  ────\n"
            "vanilla     82.0\n"
            "oea:k0=3 µ\n");
}

TEST(Human, NumbersForPeople) {
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(18433528), "18.4 MB");
  EXPECT_EQ(HumanBytes(5.44e9), "5.44 GB");
  EXPECT_EQ(HumanCount(7796), "7,796");
  EXPECT_EQ(HumanCount(16), "16");
  EXPECT_EQ(HumanCount(1234567), "1,234,567");
  EXPECT_EQ(HumanSeconds(12.3e-6), "12.3 us");
  EXPECT_EQ(HumanSeconds(0.00456), "4.56 ms");
}

}  // namespace
}  // namespace carpool
