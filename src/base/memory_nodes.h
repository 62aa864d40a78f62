// Memory nodes (NUMA): which there are, and pages spread over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace carpool {

/// One memory node that this process may allocate on.
struct MemoryNode {
  int id = 0;
  std::vector<int> cpus;  // of the node, ascending; empty for memory without processors
};

/// Nodes with memory, ascending, from the system's description (Linux: `root` =
/// /sys/devices/system/node). One node 0 where there is none.
std::vector<MemoryNode> ReadMemoryNodes(const std::string& root);
/// Of this machine; read once.
const std::vector<MemoryNode>& MemoryNodes();

/// Parses "0-3,8,10-11". False, and nothing written, for anything else.
bool ParseCpuList(const std::string& text, std::vector<int>& cpus);

/// Bit i of word i / 64 stands for node i: the mask the system call takes.
std::vector<uint64_t> NodeMask(const std::vector<MemoryNode>& nodes);

/// Asks the system to put the untouched pages of [p, p + bytes) on all nodes in turn. Which experts
/// a step reads is not known before, and any thread may read any of them; in turn, every choice of
/// experts is read from all memory controllers at once. True when there was more than one node and
/// the system agreed.
bool SpreadOverNodes(void* p, size_t bytes, const std::vector<MemoryNode>& nodes);

}  // namespace carpool
