#include "base/memory_info.h"

#include <cstdint>
#include <cstdio>

namespace carpool {

size_t AvailableMemory() {
  std::FILE* f = std::fopen("/proc/meminfo", "r");
  if (f == nullptr) return SIZE_MAX;
  char line[128];
  size_t kilobytes = 0;
  while (std::fgets(line, sizeof(line), f) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1) break;
  }
  std::fclose(f);
  return kilobytes == 0 ? SIZE_MAX : kilobytes * 1024;
}

}  // namespace carpool
