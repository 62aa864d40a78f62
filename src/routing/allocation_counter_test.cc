// Counts what this test program allocates. A file of its own, so that no caller inlines the pair of
// operators.
#include <atomic>
#include <cstdlib>
#include <new>

#include "routing/test_inputs.h"

namespace {
std::atomic<uint64_t> allocations{0};
}

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
// The library's own nothrow form would not be ours to free.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace carpool {
uint64_t AllocationCount() { return allocations.load(); }
}  // namespace carpool
