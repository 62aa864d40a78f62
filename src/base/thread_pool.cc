#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace carpool {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until `value` differs from `old`, then sleeps until it does.
template <typename T>
void WaitWhileEqual(const std::atomic<T>& value, T old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (int i = 0;; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
    if ((i & 63) == 63 && std::chrono::steady_clock::now() > deadline) break;
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

/// CPUs' worth of quota in cgroup v2 (rounded up), or a large number when there is none.
size_t CgroupCpus() {
  std::FILE* f = std::fopen("/sys/fs/cgroup/cpu.max", "r");
  if (f == nullptr) return SIZE_MAX;
  long long quota = 0, period = 0;
  const int read = std::fscanf(f, "%lld %lld", &quota, &period);
  std::fclose(f);
  if (read != 2 || quota <= 0 || period <= 0) return SIZE_MAX;
  return static_cast<size_t>((quota + period - 1) / period);
}

}  // namespace

size_t UsableCpus() {
  cpu_set_t set;
  size_t affinity = std::thread::hardware_concurrency();
  if (sched_getaffinity(0, sizeof(set), &set) == 0) affinity = static_cast<size_t>(CPU_COUNT(&set));
  const size_t cpus = std::min(affinity, CgroupCpus());
  return cpus == 0 ? 1 : cpus;
}

Result<size_t> ResolveThreads(bool given, long long threads) {
  if (!given) return std::min(UsableCpus(), kMaxThreads);
  if (threads < 1 || threads > static_cast<long long>(kMaxThreads)) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "--threads: wanted 1 to {}, got {}; leave it out to use the {} CPUs of this machine",
        kMaxThreads, threads, UsableCpus());
  }
  return static_cast<size_t>(threads);
}

ThreadPool::ThreadPool(size_t threads) {
  CARPOOL_CHECK(threads >= 1 && threads <= kMaxThreads);
  workers_.reserve(threads - 1);
  for (size_t w = 1; w < threads; ++w) workers_.emplace_back([this, w] { WorkerLoop(w); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::Drain(size_t worker) {
  for (size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < tasks_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    call_(fn_, i, worker);
  }
}

void ThreadPool::Run(size_t tasks, TaskFn call, const void* fn) {
  ++regions_;
  call_ = call;
  fn_ = fn;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Drain(0);
  for (uint32_t left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    WaitWhileEqual(running_, left);
  }
}

void ThreadPool::WorkerLoop(size_t worker) {
  uint32_t seen = 0;
  while (true) {
    WaitWhileEqual(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    Drain(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace carpool
