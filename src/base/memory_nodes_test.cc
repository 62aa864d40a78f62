#include "base/memory_nodes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/page_buffer.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

/// A directory that looks like /sys/devices/system/node.
class MemoryNodesTest : public ::testing::Test {
 protected:
  MemoryNodesTest() : root_(fs::temp_directory_path() / ("nodes_" + std::to_string(getpid()))) {}
  ~MemoryNodesTest() override { fs::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(MemoryNodesTest, TwoSocketsAndANodeWithoutProcessors) {
  Write("has_memory", "0-1,3\n");
  Write("node0/cpulist", "0-3,8-11\n");
  Write("node1/cpulist", "4-7\n");
  Write("node2/cpulist", "12\n");  // processors without memory
  Write("node3/cpulist", "\n");
  const auto nodes = ReadMemoryNodes(root_.string());
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].cpus, (std::vector<int>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(nodes[1].cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(nodes[2].id, 3);
  EXPECT_TRUE(nodes[2].cpus.empty());
  EXPECT_EQ(NodeMask(nodes), std::vector<uint64_t>{0b1011});
}

TEST_F(MemoryNodesTest, OneNodeWhereTheSystemSaysNothing) {
  EXPECT_EQ(ReadMemoryNodes(root_.string()).size(), 1u);
  Write("has_memory", "junk\n");
  EXPECT_EQ(ReadMemoryNodes(root_.string()).size(), 1u);
  EXPECT_GE(MemoryNodes().size(), 1u);
}

TEST(NodeMask, ManyNodes) {
  EXPECT_EQ(NodeMask({{0, {}}, {64, {}}, {127, {}}}),
            (std::vector<uint64_t>{1, (uint64_t{1} << 63) | 1}));
}

TEST(ParseCpuList, RefusesWhatIsNoList) {
  std::vector<int> cpus = {5};
  for (const char* text : {"a", "1-", "3-1", "1,,2", "-1", "1 2", "99999999"}) {
    EXPECT_FALSE(ParseCpuList(text, cpus)) << text;
  }
  EXPECT_EQ(cpus, std::vector<int>{5});
  EXPECT_TRUE(ParseCpuList("", cpus));
  EXPECT_TRUE(cpus.empty());
}

TEST(SpreadOverNodes, LeavesTheMemoryUsable) {
  PageBuffer buffer(size_t{4} << 20);
  EXPECT_FALSE(SpreadOverNodes(buffer.data(), buffer.size(), {{0, {}}}))
      << "one node: nothing to do";
  // Nodes this machine need not have: the system may refuse, the memory works all the same.
  SpreadOverNodes(buffer.data(), buffer.size(), {{0, {}}, {1, {}}});
  buffer.data()[buffer.size() - 1] = std::byte{1};
  EXPECT_EQ(buffer.data()[0], std::byte{0});
}

}  // namespace
}  // namespace carpool
