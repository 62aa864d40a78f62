#include "layers/kv_cache.h"

#include <sys/mman.h>

#include <new>

#include "base/check.h"

namespace carpool {

size_t KvLayout::FloatsPerToken() const {
  size_t sum = 0;
  for (size_t w : entry_width) sum += w;
  for (size_t w : index_dim) sum += w;
  return sum;
}

KvCache::Plane::Plane(size_t floats) : bytes_(floats * sizeof(float)) {
  if (bytes_ == 0) return;
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<float*>(p);
}

KvCache::Plane::~Plane() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void KvCache::Plane::Commit() {
  if (data_ == nullptr) return;
  madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish; small pages do as well
  constexpr size_t kSmallestPage = 4096;
  for (size_t at = 0; at < bytes_; at += kSmallestPage) data_[at / sizeof(float)] = 0.0f;
}

void KvCache::Commit() {
  for (Plane& plane : entries_) plane.Commit();
  for (Plane& plane : index_) plane.Commit();
}

KvCache::KvCache(KvLayout layout, size_t num_pages)
    : layout_(std::move(layout)), num_pages_(num_pages) {
  const size_t tokens = num_pages * kPageTokens;
  for (size_t width : layout_.entry_width) entries_.emplace_back(tokens * width);
  for (size_t dim : layout_.index_dim) index_.emplace_back(tokens * dim);
  owners_.assign(num_pages, 0);
  free_.reserve(num_pages);
  for (size_t page = num_pages; page > 0; --page) free_.push_back(static_cast<uint32_t>(page - 1));
}

bool KvCache::Grow(PageTable& table, size_t tokens) {
  const size_t want = DivCeil(tokens, kPageTokens);
  if (want <= table.pages.size()) return true;
  if (want - table.pages.size() > free_.size()) return false;
  while (table.pages.size() < want) {
    const uint32_t page = free_.back();
    free_.pop_back();
    owners_[page] = 1;
    table.pages.push_back(page);
  }
  return true;
}

void KvCache::Release(PageTable& table) {
  for (uint32_t page : table.pages) {
    CARPOOL_CHECK(owners_[page] > 0);
    if (--owners_[page] == 0) free_.push_back(page);
  }
  table.pages.clear();
}

}  // namespace carpool
