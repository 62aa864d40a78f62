#include "lab/server_ab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace carpool {
namespace {

using ::testing::HasSubstr;

TEST(ServerUrl, IsTakenApart) {
  const auto url = ParseServerUrl("http://example.org:8080/v1");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "example.org");
  EXPECT_EQ(url->port, 8080);
  EXPECT_EQ(ParseServerUrl("http://example.org")->port, 80);
  for (const char* bad : {"", "example.org:80", "https://a:1", "http://", "http://a:", "http://a:b",
                          "http://a:99999", "http://:80"})
    EXPECT_FALSE(ParseServerUrl(bad)) << bad;
}

TEST(BucketedKl, IsALowerBoundAndExactWhereAllIsTold) {
  const auto token = [](double a, double b, double rest) {
    ScoredToken t;
    t.text = "a";
    t.logprob = std::log(a);
    t.top = {{"a", std::log(a)}, {"b", std::log(b)}};
    if (rest > 0) t.top.emplace_back("c", std::log(rest));
    return t;
  };
  const double exact =
      0.5 * std::log(0.5 / 0.6) + 0.3 * std::log(0.3 / 0.3) + 0.2 * std::log(0.2 / 0.1);
  EXPECT_NEAR(BucketedKl(token(0.5, 0.3, 0.2), token(0.6, 0.3, 0.1)), exact, 1e-12);
  EXPECT_NEAR(BucketedKl(token(0.5, 0.3, 0), token(0.6, 0.3, 0)), exact, 1e-12);  // rest = c
  // Another token b in the candidate's list: only what both name counts, and less shows.
  ScoredToken other = token(0.5, 0.3, 0);
  other.top[1].first = "d";
  const double bound = BucketedKl(other, token(0.6, 0.3, 0));
  EXPECT_GT(bound, 0.0);
  EXPECT_LT(bound, exact);
  EXPECT_EQ(BucketedKl(token(0.5, 0.3, 0.2), token(0.5, 0.3, 0.2)), 0.0);
}

TEST(CheckServerAb, SaysHowMuchTextIsNeeded) {
  ServerAbOptions o;
  o.text = std::string(1000, 'x');
  o.ab.pace.rounds = 4;
  EXPECT_THAT(CheckServerAb(o).error().message, HasSubstr("at least 5"));
  o.ab.pace.rounds = 5;
  o.ab.pace.batch = 4;
  o.ab.pace.prompt = 8;
  o.ab.quality.windows = 1;
  o.ab.quality.context = 100;
  EXPECT_THAT(CheckServerAb(o).error().message, HasSubstr("1600 bytes"));
  o.ab.quality.context = 50;
  EXPECT_TRUE(CheckServerAb(o));
}

}  // namespace
}  // namespace carpool
