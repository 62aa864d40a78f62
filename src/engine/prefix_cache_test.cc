#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace carpool {
namespace {

constexpr uint32_t kExact = PrefixCache::kExactTag;
constexpr size_t kPages = 8;

class PrefixCacheTest : public testing::Test {
 protected:
  static std::vector<int32_t> Tokens(size_t pages, int32_t first = 0) {
    std::vector<int32_t> tokens(pages * kPageTokens);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  /// A finished sequence of `tags.size()` pages.
  void Finish(std::span<const int32_t> tokens, std::vector<uint32_t> tags) {
    PageTable table;
    ASSERT_TRUE(kv_.Grow(table, tokens.size()));
    cache_.Insert(tokens, tags, table);
    kv_.Release(table);
  }
  size_t Found(std::span<const int32_t> tokens, uint32_t tag) {
    PageTable table;
    const size_t found = cache_.Take(tokens, tag, table).tokens;
    EXPECT_EQ(table.pages.size() * kPageTokens, found);
    kv_.Release(table);
    return found;
  }

  KvCache kv_{KvLayout{{16}, {0}}, kPages};
  PrefixCache cache_{kv_};
};

TEST_F(PrefixCacheTest, FindsWholePagesOfTheLongestPrefix) {
  const auto tokens = Tokens(3);
  Finish(tokens, {kExact, kExact, kExact});
  EXPECT_EQ(Found(tokens, kExact), 3 * kPageTokens);
  auto other = tokens;
  other[2 * kPageTokens + 3] = -1;
  EXPECT_EQ(Found(other, kExact), 2 * kPageTokens);
  EXPECT_EQ(Found(std::span(tokens).first(kPageTokens + 5), kExact), kPageTokens);
  EXPECT_EQ(Found(Tokens(2, 7), kExact), 0u);
}

TEST_F(PrefixCacheTest, ExactRequestsTakeExactPagesOnly) {
  const auto tokens = Tokens(3);
  Finish(tokens, {kExact, 5, 5});
  EXPECT_EQ(Found(tokens, kExact), kPageTokens);
  EXPECT_EQ(Found(tokens, 5), 3 * kPageTokens);
  EXPECT_EQ(Found(tokens, 6), kPageTokens);
  Finish(tokens, {kExact, kExact, kExact});
  EXPECT_EQ(Found(tokens, kExact), 3 * kPageTokens);
  EXPECT_EQ(cache_.num_pages(), 5u);
  PageTable table;
  EXPECT_EQ(cache_.Take(tokens, 5, table).exact_tokens, 3 * kPageTokens);
  kv_.Release(table);
}

TEST_F(PrefixCacheTest, MakesRoomFromTheLeastRecentlyUsedLeaf) {
  const auto a = Tokens(3), b = Tokens(3, 1000);
  Finish(a, {kExact, kExact, kExact});
  Finish(b, {kExact, kExact, kExact});
  EXPECT_EQ(kv_.free_pages(), 2u);
  EXPECT_EQ(Found(a, kExact), 3 * kPageTokens);  // a is fresher now
  EXPECT_TRUE(cache_.MakeRoom(4));
  EXPECT_EQ(Found(a, kExact), 3 * kPageTokens);
  EXPECT_EQ(Found(b, kExact), kPageTokens);
}

TEST_F(PrefixCacheTest, PagesInUseStay) {
  const auto a = Tokens(3);
  Finish(a, {kExact, kExact, kExact});
  PageTable user;
  EXPECT_EQ(cache_.Take(std::span(a).first(2 * kPageTokens), kExact, user).tokens, 2 * kPageTokens);
  EXPECT_FALSE(cache_.MakeRoom(kPages));
  EXPECT_EQ(kv_.free_pages(), kPages - 2);
  kv_.Release(user);
  EXPECT_TRUE(cache_.MakeRoom(kPages));
  EXPECT_EQ(cache_.num_pages(), 0u);
}

TEST_F(PrefixCacheTest, NothingLeaks) {
  for (int32_t i = 0; i < 50; ++i) {
    const auto tokens = Tokens(1 + static_cast<size_t>(i % 3), i % 7);
    if (!cache_.MakeRoom(3)) FAIL();
    Finish(tokens, std::vector<uint32_t>(tokens.size() / kPageTokens, i % 2 == 0 ? kExact : 3));
  }
  std::vector<uint8_t> seen(kPages, 0);
  cache_.MarkPages(seen);
  EXPECT_EQ(static_cast<size_t>(std::count(seen.begin(), seen.end(), 1)), cache_.num_pages());
  EXPECT_EQ(kv_.free_pages() + cache_.num_pages(), kPages);
  cache_.Clear();
  EXPECT_EQ(kv_.free_pages(), kPages);
}

}  // namespace
}  // namespace carpool
