// KvCache: what attention remembers, in pages of kPageTokens tokens shared by all layers.
//
// A layer has one or two planes. MLA: the normed latent and the rotated rope key, padded, one entry
// per token; the DSA indexer's keys, transposed inside a page ([index_dim][kPageTokens]) so that
// scoring needs no horizontal sums. A page id means the same tokens in every plane, so that reusing
// a page restores all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "base/result.h"
#include "ops/index_scores.h"

namespace carpool {

inline constexpr size_t kPageTokens = kIndexGroup;

/// Floats per token of each plane of each layer; 0 = the layer has no such plane.
struct KvLayout {
  std::vector<size_t> entry_width;  // [layers], multiples of kAttentionPad
  std::vector<size_t> index_dim;    // [layers]

  size_t FloatsPerToken() const;
  size_t BytesPerToken() const { return FloatsPerToken() * sizeof(float); }
};

/// The pages of one sequence, in order. Owned by the sequence; page ids belong to the KvCache.
struct PageTable {
  std::vector<uint32_t> pages;
  size_t capacity_tokens() const { return pages.size() * kPageTokens; }
};

class KvCache {
 public:
  /// Reserves address space for `num_pages`; the memory is touched page by page as sequences grow.
  KvCache(KvLayout layout, size_t num_pages);

  const KvLayout& layout() const { return layout_; }
  size_t num_pages() const { return num_pages_; }
  size_t bytes() const { return num_pages_ * kPageTokens * layout_.BytesPerToken(); }
  /// Touches all of it now, in huge pages where there are any: a server's steps then never wait for
  /// the system, and its memory does not grow.
  void Commit();
  size_t free_pages() const { return free_.size(); }

  /// Makes room for `tokens` tokens in all. False, and nothing changed, when there are too few free
  /// pages.
  [[nodiscard]] bool Grow(PageTable& table, size_t tokens);
  /// Gives every page of the table back.
  void Release(PageTable& table);
  /// One more owner of a page (prefix sharing); Release of any owner takes one away.
  void Share(uint32_t page) { ++owners_[page]; }
  uint32_t owners(uint32_t page) const { return owners_[page]; }

  /// [entry_width] floats of the token at `position`.
  float* Entry(size_t layer, const PageTable& table, size_t position) {
    const size_t width = layout_.entry_width[layer];
    return entries_[layer].data() +
           (static_cast<size_t>(table.pages[position / kPageTokens]) * kPageTokens +
            position % kPageTokens) *
               width;
  }
  /// The transposed index keys [index_dim][kPageTokens] of the page that holds `position`.
  float* IndexPage(size_t layer, const PageTable& table, size_t position) {
    return index_[layer].data() + static_cast<size_t>(table.pages[position / kPageTokens]) *
                                      kPageTokens * layout_.index_dim[layer];
  }

 private:
  /// Zero pages from the system, returned on destruction.
  class Plane {
   public:
    explicit Plane(size_t floats);
    ~Plane();
    Plane(Plane&& o) noexcept : data_(o.data_), bytes_(o.bytes_) { o.data_ = nullptr; }
    Plane& operator=(Plane&&) = delete;
    float* data() { return data_; }
    void Commit();

   private:
    float* data_ = nullptr;
    size_t bytes_ = 0;
  };

  KvLayout layout_;
  size_t num_pages_;
  std::vector<Plane> entries_;
  std::vector<Plane> index_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> owners_;
};

}  // namespace carpool
