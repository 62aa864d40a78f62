#include "server/stop_matcher.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

std::string Stream(StopMatcher& matcher, std::string_view text, size_t piece) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += matcher.Feed(text.substr(i, piece));
  return out + matcher.Finish();
}

TEST(StopMatcher, FindsStopsWhereverTheTextIsCut) {
  const std::string text = "one two three four";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    StopMatcher matcher({"zzz", "three", "four"});
    EXPECT_EQ(Stream(matcher, text, piece), "one two ") << piece;
    EXPECT_TRUE(matcher.matched());
  }
}

TEST(StopMatcher, GivesBackWhatOnlyLookedLikeAStop) {
  for (size_t piece = 1; piece <= 8; ++piece) {
    StopMatcher matcher({"abac", "STOP"});
    EXPECT_EQ(Stream(matcher, "abab abaSTO", piece), "abab abaSTO");
    EXPECT_FALSE(matcher.matched());
  }
}

TEST(StopMatcher, HoldsNothingWithoutStops) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Feed("abc"), "abc");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, EarliestOfSeveralStopsWins) {
  StopMatcher matcher({"cd", "bc"});
  EXPECT_EQ(matcher.Feed("abcd"), "a");
  EXPECT_EQ(matcher.Feed("more"), "");
}

}  // namespace
}  // namespace carpool
