#include "base/memory_nodes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace carpool {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

bool ParseCpuList(const std::string& text, std::vector<int>& cpus) {
  constexpr int kMost = 1 << 16;
  std::vector<int> parsed;
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    int first = 0, last = 0;
    auto result = std::from_chars(p, end, first);
    if (result.ec != std::errc() || first < 0) return false;
    last = first;
    if (result.ptr < end && *result.ptr == '-') {
      result = std::from_chars(result.ptr + 1, end, last);
      if (result.ec != std::errc() || last < first) return false;
    }
    if (last >= kMost) return false;
    for (int cpu = first; cpu <= last; ++cpu) parsed.push_back(cpu);
    p = result.ptr;
    if (p < end && *p++ != ',') return false;
  }
  cpus = std::move(parsed);
  return true;
}

std::vector<MemoryNode> ReadMemoryNodes(const std::string& root) {
  std::vector<int> ids;
  std::vector<MemoryNode> nodes;
  if (ParseCpuList(FirstLine(root + "/has_memory"), ids)) {
    for (const int id : ids) {
      MemoryNode node{id, {}};
      const std::string path = root + "/node" + std::to_string(id) + "/cpulist";
      if (ParseCpuList(FirstLine(path), node.cpus)) nodes.push_back(std::move(node));
    }
  }
  if (nodes.empty()) nodes.push_back({});
  return nodes;
}

const std::vector<MemoryNode>& MemoryNodes() {
  static const std::vector<MemoryNode> nodes = ReadMemoryNodes("/sys/devices/system/node");
  return nodes;
}

std::vector<uint64_t> NodeMask(const std::vector<MemoryNode>& nodes) {
  int last = 0;
  for (const auto& node : nodes) last = std::max(last, node.id);
  std::vector<uint64_t> mask(static_cast<size_t>(last) / 64 + 1);
  for (const auto& node : nodes)
    mask[static_cast<size_t>(node.id) / 64] |= uint64_t{1} << (node.id % 64);
  return mask;
}

bool SpreadOverNodes(void* p, size_t bytes, const std::vector<MemoryNode>& nodes) {
  if (nodes.size() < 2) return false;
#if defined(__linux__) && defined(SYS_mbind)
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
  const auto mask = NodeMask(nodes);
  return syscall(SYS_mbind, p, bytes, kInterleave, mask.data(), mask.size() * 64 + 1, 0) == 0;
#else
  (void)p;
  (void)bytes;
  return false;
#endif
}

}  // namespace carpool
