// Arena: the scratch memory of one step. Bump allocation, no allocation from the heap once it has
// warmed up.
#pragma once

#include <cstddef>
#include <vector>

#include "base/aligned.h"
#include "base/views.h"

namespace carpool {

/// Hands out 64-byte aligned memory that stays valid until Rewind() to an earlier mark (or
/// Reset()). Grows by whole blocks when it must; a step that fits what earlier steps used allocates
/// nothing. In debug builds and in tests (`set_poison`) fresh memory is filled with NaN bytes, so
/// that an element read before it was written shows. Not thread-safe: one arena per thread that
/// allocates.
class Arena {
 public:
  struct Mark {
    size_t block = 0;
    size_t used = 0;
  };

  explicit Arena(size_t block_bytes = size_t{1} << 20) : block_bytes_(block_bytes) {}

  template <typename T>
  T* Allocate(size_t n) {
    return static_cast<T*>(AllocateBytes(n * sizeof(T)));
  }
  template <typename T>
  MatView<T> Matrix(size_t rows, size_t cols) {
    const size_t stride = RoundUp(cols * sizeof(T), kCacheLineBytes) / sizeof(T);
    return MatView<T>(Allocate<T>(rows * stride), rows, cols, stride);
  }
  template <typename T>
  std::span<T> Span(size_t n) {
    return {Allocate<T>(n), n};
  }

  Mark mark() const { return {block_, used_}; }
  void Rewind(Mark m) {
    block_ = m.block;
    used_ = m.used;
  }
  void Reset() { Rewind({}); }
  void set_poison(bool on) { poison_ = on; }
  /// Bytes of all blocks, i.e. the largest need so far (rounded up to blocks).
  size_t capacity_bytes() const {
    size_t sum = 0;
    for (const auto& b : blocks_) sum += b.size();
    return sum;
  }

 private:
  void* AllocateBytes(size_t bytes) {
    bytes = RoundUp(bytes == 0 ? 1 : bytes, kCacheLineBytes);
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size()) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) {
      blocks_.emplace_back(bytes > block_bytes_ ? bytes : block_bytes_);
      used_ = 0;
    }
    std::byte* p = blocks_[block_].data() + used_;
    used_ += bytes;
    if (poison_) std::memset(p, 0xFF, bytes);  // 0xFFFFFFFF is a NaN as float and -1 as an id
    return p;
  }

  size_t block_bytes_;
  std::vector<AlignedBuffer<std::byte>> blocks_;
  size_t block_ = 0;
  size_t used_ = 0;
#ifdef CARPOOL_DEBUG
  bool poison_ = true;
#else
  bool poison_ = false;
#endif
};

/// Gives back what was allocated since construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.Rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace carpool
