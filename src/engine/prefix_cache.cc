#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace carpool {

PrefixCache::Key PrefixCache::MakeKey(uint32_t tag, std::span<const int32_t> tokens) {
  Key key{tag, {}};
  std::copy_n(tokens.begin(), kPageTokens, key.second.begin());
  return key;
}

void PrefixCache::Touch(Node& node) {
  const bool leaf = node.children.empty();
  if (leaf) leaves_.erase({node.used, &node});
  node.used = ++clock_;
  if (leaf) leaves_.insert({node.used, &node});
}

PrefixCache::Match PrefixCache::Take(std::span<const int32_t> tokens, uint32_t tag,
                                     PageTable& table) {
  CARPOOL_CHECK(table.pages.empty());
  Match match;
  Node* node = &root_;
  bool exact = true;
  while (tokens.size() - match.tokens >= kPageTokens) {
    const auto page_tokens = tokens.subspan(match.tokens, kPageTokens);
    auto child = node->children.end();
    if (exact) child = node->children.find(MakeKey(kExactTag, page_tokens));
    if (child == node->children.end() && tag != kExactTag) {
      child = node->children.find(MakeKey(tag, page_tokens));
      exact = false;
    }
    if (child == node->children.end()) break;
    node = child->second.get();
    Touch(*node);
    kv_.Share(node->page);
    table.pages.push_back(node->page);
    match.tokens += kPageTokens;
    if (exact) match.exact_tokens += kPageTokens;
  }
  return match;
}

void PrefixCache::Insert(std::span<const int32_t> tokens, std::span<const uint32_t> tags,
                         const PageTable& table) {
  CARPOOL_CHECK_LE(tags.size() * kPageTokens, tokens.size());
  CARPOOL_CHECK_LE(tags.size(), table.pages.size());
  Node* node = &root_;
  for (size_t i = 0; i < tags.size(); ++i) {
    Key key = MakeKey(tags[i], tokens.subspan(i * kPageTokens, kPageTokens));
    const auto known = node->children.find(key);
    if (known != node->children.end()) {
      node = known->second.get();
      Touch(*node);
      continue;
    }
    if (node != &root_ && node->children.empty()) leaves_.erase({node->used, node});
    const auto added = node->children.emplace(std::move(key), std::make_unique<Node>()).first;
    Node& child = *added->second;
    child.parent = node;
    child.key = &added->first;
    child.page = table.pages[i];
    kv_.Share(child.page);
    ++num_pages_;
    Touch(child);
    node = &child;
  }
}

void PrefixCache::Remove(Node& leaf) {
  leaves_.erase({leaf.used, &leaf});
  PageTable page;
  page.pages.push_back(leaf.page);
  kv_.Release(page);
  --num_pages_;
  Node* parent = leaf.parent;
  parent->children.erase(parent->children.find(*leaf.key));
  if (parent != &root_ && parent->children.empty()) leaves_.insert({parent->used, parent});
}

bool PrefixCache::MakeRoom(size_t pages) {
  // A page that a running sequence shares frees nothing yet; it and its ancestors stay.
  auto it = leaves_.begin();
  while (kv_.free_pages() < pages && it != leaves_.end()) {
    Node& leaf = *it->second;
    if (kv_.owners(leaf.page) > 1) {
      ++it;
      continue;
    }
    Remove(leaf);
    it = leaves_.begin();
  }
  return kv_.free_pages() >= pages;
}

void PrefixCache::Clear() {
  while (!leaves_.empty()) Remove(*leaves_.begin()->second);
}

void PrefixCache::MarkPages(std::vector<uint8_t>& seen) const {
  std::vector<const Node*> open = {&root_};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (node != &root_) seen[node->page] = 1;
    for (const auto& [key, child] : node->children) open.push_back(child.get());
  }
}

}  // namespace carpool
