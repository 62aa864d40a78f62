#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace carpool {
namespace {

/// Pages of files that are mapped and in memory, of this process.
size_t FilePagesHere() {
  size_t total = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> total >> resident >> shared;
  return shared;
}

TEST(MappedFile, ReleaseGivesItsPagesBackAndLosesNothing) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kPages = 2048;
  std::string path = ::testing::TempDir() + "carpool-mapped-XXXXXX";
  const int fd = mkstemp(path.data());
  ASSERT_GE(fd, 0);
  close(fd);
  std::ofstream(path, std::ios::binary) << std::string(kPages * page, 'x');
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file) << file.error().message;
  const auto read_all = [&] {
    size_t sum = 0;
    for (size_t i = 0; i < kPages; ++i) sum += static_cast<size_t>(file->bytes()[i * page]);
    return sum;
  };
  const size_t before = FilePagesHere();
  file->Prefetch(file->bytes().data() + 5, kPages * page);
  EXPECT_EQ(read_all(), kPages * 'x');
  EXPECT_GE(FilePagesHere(), before + kPages * 9 / 10);  // the kernel counts in batches
  file->Release();
  EXPECT_LE(FilePagesHere(), before + kPages / 10);
  EXPECT_EQ(read_all(), kPages * 'x');
  std::remove(path.c_str());
}

}  // namespace
}  // namespace carpool
