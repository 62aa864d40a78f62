#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace carpool {
namespace {

TEST(ThreadPool, EveryTaskRunsExactlyOnceForAnyThreadCount) {
  for (size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (size_t tasks : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> hits(tasks);
      pool.ParallelFor(tasks, [&](size_t task, size_t worker) {
        EXPECT_LT(worker, threads);
        hits[task].fetch_add(1);
      });
      for (auto& h : hits) EXPECT_EQ(h.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortRegionsDoNotLoseWork) {
  ThreadPool pool(3);
  std::atomic<size_t> sum{0};
  for (size_t region = 0; region < 5000; ++region) {
    pool.ParallelFor(region % 5,
                     [&](size_t, size_t) { sum.fetch_add(1, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 5000u / 5 * (0 + 1 + 2 + 3 + 4));
}

TEST(ResolveThreads, RejectsZeroAndTenThousand) {
  EXPECT_FALSE(ResolveThreads(true, 0).has_value());
  EXPECT_FALSE(ResolveThreads(true, 10000).has_value());
  EXPECT_FALSE(ResolveThreads(true, -3).has_value());
  EXPECT_EQ(*ResolveThreads(true, 3), 3u);
  EXPECT_GE(*ResolveThreads(false, 0), 1u);
}

}  // namespace
}  // namespace carpool
