#include "server/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/aligned.h"

namespace carpool {

double MeasureReadBandwidth(ThreadPool& pool) {
  constexpr size_t kWords = (size_t{128} << 20) / sizeof(uint64_t);
  constexpr size_t kTasks = 128;
  constexpr int kPasses = 4;  // the first one meets cold page tables
  const AlignedBuffer<uint64_t> memory(kWords);
  std::atomic<uint64_t> total{0};  // so that no sum is left out
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(kTasks, [&](size_t task, size_t) {
      const uint64_t* words = memory.data() + task * (kWords / kTasks);
      uint64_t sum = 0;
      for (size_t i = 0; i < kWords / kTasks; ++i) sum += words[i];
      total.fetch_add(sum, std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kWords * sizeof(uint64_t)) / seconds.count());
  }
  return total.load() == 0 ? best : 0.0;
}

}  // namespace carpool
