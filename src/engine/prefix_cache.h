// PrefixCache: finished KV pages by the tokens they hold, so that a prompt that starts like an
// earlier one skips that part of its prefill.
//
// A radix tree whose edges are whole pages (kPageTokens tokens). A node owns one share of its page
// in the KvCache; a page id covers every layer and both planes (latents and indexer keys), so a
// match restores all of them. Every page has a tag: kExactTag when each of its tokens and of those
// before it ran with vanilla routing, else the number of the policy that wrote it. Exact requests
// match exact pages only, so that their results cannot depend on others.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "layers/kv_cache.h"

namespace carpool {

class PrefixCache {
 public:
  static constexpr uint32_t kExactTag = 0;

  /// `kv` outlives this.
  explicit PrefixCache(KvCache& kv) : kv_(kv) {}
  ~PrefixCache() { Clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Match {
    size_t tokens = 0;        // a multiple of kPageTokens
    size_t exact_tokens = 0;  // of those, in pages tagged exact
  };
  /// Appends the pages of the longest cached prefix of `tokens` to the empty `table`, each with a
  /// share of its own. Takes pages tagged exact and, unless it is kExactTag, pages tagged `tag`.
  Match Take(std::span<const int32_t> tokens, uint32_t tag, PageTable& table);

  /// Remembers the first tags.size() pages of `table`, which hold `tokens`
  /// (tokens.size() >= tags.size() * kPageTokens). Pages known already stay as they are.
  void Insert(std::span<const int32_t> tokens, std::span<const uint32_t> tags,
              const PageTable& table);

  /// Gives pages that only the tree holds back, least recently used first, until `pages` are free
  /// or nothing is left to evict. True when they are free.
  bool MakeRoom(size_t pages);
  void Clear();

  size_t num_pages() const { return num_pages_; }
  /// Marks the pages the tree holds in `seen` [num_pages of the cache].
  void MarkPages(std::vector<uint8_t>& seen) const;

 private:
  struct Node;
  using Key = std::pair<uint32_t, std::array<int32_t, kPageTokens>>;  // tag, tokens
  struct Node {
    std::map<Key, std::unique_ptr<Node>> children;
    Node* parent = nullptr;
    const Key* key = nullptr;  // in the parent's map
    uint32_t page = 0;
    uint64_t used = 0;  // value of clock_; unique
  };

  static Key MakeKey(uint32_t tag, std::span<const int32_t> tokens);
  void Touch(Node& node);
  void Remove(Node& leaf);

  KvCache& kv_;
  Node root_;
  std::set<std::pair<uint64_t, Node*>> leaves_;
  uint64_t clock_ = 0;
  size_t num_pages_ = 0;
};

}  // namespace carpool
