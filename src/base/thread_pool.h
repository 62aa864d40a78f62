// ThreadPool: fork-join over a counted set of tasks. Workers and caller spin briefly, then sleep on
// a futex.
//
// A decode step has a few hundred parallel regions of 10 to 1000 us, so the cost of a region is
// what matters: about half a microsecond when quiet. The spin is bounded (50 us): on a shared
// machine an unbounded one ruins everybody.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace carpool {

/// The most threads that can be asked for.
inline constexpr size_t kMaxThreads = 256;

/// CPUs this process may run on (affinity and cgroup quota respected), at least 1.
size_t UsableCpus();

/// Turns a `--threads` value into a thread count: 0 means "not given" only when `given` is false.
/// Errors when given and outside 1...kMaxThreads.
Result<size_t> ResolveThreads(bool given, long long threads);

class ThreadPool {
 public:
  /// `threads` counts the caller: 1 means no workers. 1...kMaxThreads.
  explicit ThreadPool(size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t num_threads() const { return workers_.size() + 1; }

  /// Calls fn(task, worker) once for every task in [0, tasks), worker in [0, num_threads());
  /// returns when all are done. Tasks are handed out by an atomic counter in ascending order, so
  /// order a skewed set longest first. One caller at a time; regions do not nest. fn must not
  /// throw. No allocation.
  template <typename Fn>
  void ParallelFor(size_t tasks, const Fn& fn) {
    if (tasks == 0) return;
    if (workers_.empty() || tasks == 1) {
      for (size_t i = 0; i < tasks; ++i) fn(i, size_t{0});
      return;
    }
    Run(
        tasks,
        [](const void* f, size_t task, size_t worker) {
          (*static_cast<const Fn*>(f))(task, worker);
        },
        &fn);
  }

  /// Parallel regions run so far.
  uint64_t regions() const { return regions_; }

 private:
  using TaskFn = void (*)(const void* fn, size_t task, size_t worker);
  void Run(size_t tasks, TaskFn call, const void* fn);
  void WorkerLoop(size_t worker);
  void Drain(size_t worker);

  // Written by the caller before the epoch is published, read by workers after they saw it.
  TaskFn call_ = nullptr;
  const void* fn_ = nullptr;
  size_t tasks_ = 0;

  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<size_t> next_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::atomic<bool> stop_{false};
  uint64_t regions_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace carpool
