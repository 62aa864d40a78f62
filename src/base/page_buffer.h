// Zeroed memory for weights: whole pages, huge ones when the buffer is big, because a panel stream
// that misses the TLB every 4 KB reads at half speed.
#pragma once

#include <cstddef>
#include <utility>

namespace carpool {

/// Owns `size()` zeroed bytes, 64-byte aligned (from 1 MB on 2 MB aligned, and spread over all
/// memory nodes page by page where there are several). Throws std::bad_alloc.
class PageBuffer {
 public:
  enum class Pages { kHuge, kSmall };  // kSmall: for comparing the two

  PageBuffer() = default;
  explicit PageBuffer(size_t bytes, Pages pages = Pages::kHuge);
  PageBuffer(PageBuffer&& o) noexcept { *this = std::move(o); }
  PageBuffer& operator=(PageBuffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(mapped_bytes_, o.mapped_bytes_);
    std::swap(mapping_, o.mapping_);
    return *this;
  }
  ~PageBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;  // null: data_ came from the heap
  size_t mapped_bytes_ = 0;
};

}  // namespace carpool
