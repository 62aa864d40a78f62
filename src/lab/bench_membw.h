// Read bandwidth of the memory: the roof over every decode step.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/page_buffer.h"
#include "base/thread_pool.h"

namespace carpool {

struct MembwRow {
  size_t threads = 0;
  bool huge_pages = false;
  bool prefetch = false;  // software prefetch 2 KB ahead, as the panel kernels do
  double gbytes_per_s_median = 0.0, gbytes_per_s_best = 0.0;  // 10^9 bytes
};

/// Memory that is read once around, part by part, so that no part is still in a cache when it comes
/// up again.
class MembwProbe {
 public:
  /// Throws std::bad_alloc. `bytes` should be several times the last-level cache.
  MembwProbe(size_t bytes, bool huge_pages);

  /// Reads `passes` parts of `part_bytes` with all threads of the pool. Threads and variant are
  /// filled in.
  MembwRow Measure(ThreadPool& pool, bool prefetch, size_t passes);

 private:
  PageBuffer memory_;
  size_t next_ = 0;
  bool huge_pages_;
};

/// Every thread count in `threads`, plain and prefetching, small pages and huge ones. `bytes` of
/// memory are allocated.
std::vector<MembwRow> BenchMembw(const std::vector<size_t>& threads, size_t bytes, size_t passes);

/// The best median of `rows`, in 10^9 bytes per second.
double BestBandwidth(const std::vector<MembwRow>& rows);

}  // namespace carpool
