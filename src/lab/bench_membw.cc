#include "lab/bench_membw.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "lab/statistics.h"

namespace carpool {
namespace {

constexpr size_t kPartBytes = size_t{128} << 20;
constexpr size_t kTaskBytes = size_t{256} << 10;

/// Reads every cache line; the sum keeps the compiler from dropping the loads.
template <bool kPrefetch>
uint64_t ReadAll(const std::byte* p, size_t bytes) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < bytes; i += 64) {
    if constexpr (kPrefetch) __builtin_prefetch(p + i + 2048, 0, 3);
    uint64_t words[8];
    std::memcpy(words, p + i, sizeof(words));
    for (size_t k = 0; k < 8; ++k) sums[k] += words[k];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

MembwProbe::MembwProbe(size_t bytes, bool huge_pages)
    : memory_(std::max(bytes, 2 * kPartBytes) / kPartBytes * kPartBytes,
              huge_pages ? PageBuffer::Pages::kHuge : PageBuffer::Pages::kSmall),
      huge_pages_(huge_pages) {
  std::memset(memory_.data(), 1, memory_.size());
}

MembwRow MembwProbe::Measure(ThreadPool& pool, bool prefetch, size_t passes) {
  std::vector<double> rates;
  std::vector<uint64_t> sinks(pool.num_threads() * 8);
  for (size_t pass = 0; pass < passes; ++pass) {
    const std::byte* part = memory_.data() + next_;
    next_ = (next_ + kPartBytes) % memory_.size();
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(kPartBytes / kTaskBytes, [&](size_t task, size_t worker) {
      const std::byte* p = part + task * kTaskBytes;
      sinks[worker * 8] += prefetch ? ReadAll<true>(p, kTaskBytes) : ReadAll<false>(p, kTaskBytes);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(kPartBytes) / seconds.count() * 1e-9);
  }
  // Reading the sums is what makes the loads observable.
  uint64_t sum = 0;
  for (const uint64_t s : sinks) sum += s;
  volatile uint64_t observed = sum;
  (void)observed;
  return {pool.num_threads(), huge_pages_, prefetch, Quantile(rates, 0.5),
          *std::max_element(rates.begin(), rates.end())};
}

std::vector<MembwRow> BenchMembw(const std::vector<size_t>& threads, size_t bytes, size_t passes) {
  std::vector<MembwRow> rows;
  for (const bool huge_pages : {false, true}) {
    MembwProbe probe(bytes, huge_pages);
    for (const size_t n : threads) {
      ThreadPool pool(n);
      for (const bool prefetch : {false, true})
        rows.push_back(probe.Measure(pool, prefetch, passes));
    }
  }
  return rows;
}

double BestBandwidth(const std::vector<MembwRow>& rows) {
  double best = 0.0;
  for (const auto& row : rows) best = std::max(best, row.gbytes_per_s_median);
  return best;
}

}  // namespace carpool
