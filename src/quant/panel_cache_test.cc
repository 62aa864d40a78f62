#include "quant/panel_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace carpool {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> Bytes(size_t n, int seed) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(seed) + i / 997);
  return bytes;
}

class PanelCacheTest : public ::testing::Test {
 protected:
  PanelCacheTest()
      : folder_(fs::temp_directory_path() / ("panel_cache_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~PanelCacheTest() override { fs::remove_all(folder_); }
  std::string Path() const { return (folder_ / "panels").string(); }
  size_t Files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  /// What a start does: every entry loaded, or made and stored. Returns how many were loaded.
  size_t Start(uint64_t key, bool finish = true) {
    PanelCache cache(Path(), key);
    size_t loaded = 0;
    for (int e = 0; e < 3; ++e) {
      const auto want = Bytes(kSizes[e], e);
      std::vector<std::byte> got(want.size());
      const std::string name = "layer " + std::to_string(e);
      if (cache.Load(name, got, pool_)) {
        ++loaded;
        EXPECT_EQ(got, want) << name;
      } else {
        EXPECT_EQ(got, std::vector<std::byte>(got.size())) << "left behind";
        cache.Store(name, want, pool_);
      }
    }
    if (finish) cache.Finish();
    return loaded;
  }

  static constexpr size_t kSizes[3] = {10'000'000, 5, 4096};
  fs::path folder_;
  ThreadPool pool_{2};
};

TEST_F(PanelCacheTest, TheSecondStartLoadsWhatTheFirstStored) {
  EXPECT_EQ(Start(7), 0u);
  EXPECT_EQ(Start(7), 3u);
  EXPECT_EQ(Files(), 1u);
}

TEST_F(PanelCacheTest, AStaleFileIsReplaced) {
  Start(7);
  EXPECT_EQ(Start(8), 0u);
  EXPECT_EQ(Start(8), 3u);
}

TEST_F(PanelCacheTest, ADamagedEntryIsMadeAgainAndTheRestIsKept) {
  Start(7);
  for (const std::streamoff at : {4096 + 4096 + 5'000'000, 4096 + 4096 + 10'002'432 + 4096}) {
    std::fstream f(Path(), std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const char byte = static_cast<char>(f.get() ^ 1);
    f.seekp(at);
    f.put(byte);
    f.close();
    EXPECT_EQ(Start(7), 2u) << at;
    EXPECT_EQ(Start(7), 3u) << at;
  }
}

TEST_F(PanelCacheTest, ATruncatedOrForeignFileIsReplaced) {
  Start(7);
  for (const size_t size : {size_t{0}, size_t{10}, size_t{4096}, size_t{4500}, size_t{9'000'000}}) {
    fs::resize_file(Path(), size);
    EXPECT_LT(Start(7), 3u) << size;
    EXPECT_EQ(Start(7), 3u) << size;
  }
  std::ofstream(Path()) << std::string(20'000, 'x');
  EXPECT_EQ(Start(7), 0u);
  EXPECT_EQ(Start(7), 3u);
}

TEST_F(PanelCacheTest, AnInterruptedStartLeavesNothing) {
  Start(7, false);
  EXPECT_EQ(Files(), 0u);
}

TEST_F(PanelCacheTest, AFolderThatCannotBeWrittenCostsNothingButTime) {
  PanelCache cache("/proc/no/such/folder", 1);
  cache.Store("a", Bytes(10, 0), pool_);
  cache.Store("b", Bytes(10, 0), pool_);
  cache.Finish();
}

}  // namespace
}  // namespace carpool
