#include "base/page_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/aligned.h"
#include "base/memory_nodes.h"

namespace carpool {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;
constexpr size_t kMapFrom = size_t{1} << 20;
// The kernels prefetch and load a little past the end of a panel's scales.
constexpr size_t kSlack = 64;
}  // namespace

PageBuffer::PageBuffer(size_t bytes, Pages pages) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes < kMapFrom) {
    const size_t rounded = RoundUp(bytes + kSlack, kCacheLineBytes);
    void* p = std::aligned_alloc(kCacheLineBytes, rounded);
    if (p == nullptr) throw std::bad_alloc();
    std::memset(p, 0, rounded);
    data_ = static_cast<std::byte*>(p);
    return;
  }
  mapped_bytes_ = bytes + kSlack + kHugePage;
  void* p = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mapping_ = p;
  data_ = static_cast<std::byte*>(p) +
          (RoundUp(reinterpret_cast<uintptr_t>(p), kHugePage) - reinterpret_cast<uintptr_t>(p));
  SpreadOverNodes(data_, RoundUp(bytes + kSlack, kSmallPage), MemoryNodes());
#ifdef MADV_HUGEPAGE
  // Advice: small pages are slower, not wrong.
  madvise(data_, bytes + kSlack, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
  (void)pages;
#endif
}

PageBuffer::~PageBuffer() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

}  // namespace carpool
