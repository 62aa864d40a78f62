#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>

#include "base/check.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"

namespace carpool {
namespace {

constexpr size_t kMaxCachedPieceBytes = 64;
constexpr size_t kMaxCachedPieces = 1 << 16;
constexpr uint32_t kNoRank = UINT32_MAX;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t HashPair(uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(key ^ (key >> 29));
}

}  // namespace

Bpe::Bpe(const TokenizerSpec& spec) : spec_(spec) {
  ids_.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.tokens[id].empty()) ids_.emplace(spec.tokens[id], static_cast<int32_t>(id));
  }
  for (uint32_t b = 0; b < 256; ++b) {
    std::string name;
    if (spec.byte_level) {
      AppendUtf8(ByteToCharacter(static_cast<uint8_t>(b)), name);
    } else {
      name = fmt::format("<0x{:02X}>", b);
    }
    byte_ids_[b] = Find(name);
  }
  is_added_.resize(spec.tokens.size());
  for (const AddedToken& token : spec.added) {
    if (static_cast<size_t>(token.id) < is_added_.size())
      is_added_[static_cast<size_t>(token.id)] = true;
  }
  size_t slots = 16;
  while (slots < 2 * spec.bpe.merges.size()) slots *= 2;
  ranks_.resize(slots);
  mask_ = slots - 1;
  for (size_t rank = 0; rank < spec.bpe.merges.size(); ++rank) {
    const uint64_t key = PairKey(spec.bpe.merges[rank].left, spec.bpe.merges[rank].right);
    size_t i = HashPair(key) & mask_;
    while (ranks_[i].pair != UINT64_MAX && ranks_[i].pair != key) i = (i + 1) & mask_;
    ranks_[i] = {key, static_cast<uint32_t>(
                          rank)};  // of a pair listed twice the later rank counts, as in HF
  }
}

int32_t Bpe::Find(std::string_view vocab_string) const {
  const auto it = ids_.find(vocab_string);
  return it == ids_.end() ? -1 : it->second;
}

uint32_t Bpe::Rank(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  for (size_t i = HashPair(key) & mask_;; i = (i + 1) & mask_) {
    if (ranks_[i].pair == key) return ranks_[i].rank;
    if (ranks_[i].pair == UINT64_MAX) return kNoRank;
  }
}

Status Bpe::FirstSymbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  symbols.reserve(piece.size());
  if (spec_.byte_level) {
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      // A byte the vocabulary never met is left out, as the tokenizers library does.
      if (id >= 0 || spec_.bpe.unk_id >= 0) symbols.push_back(id >= 0 ? id : spec_.bpe.unk_id);
    }
    return {};
  }
  bool last_unknown = false;
  for (size_t i = 0; i < piece.size();) {
    const std::string_view one = piece.substr(i, CharBytes(piece, i));
    i += one.size();
    const int32_t id = Find(one);
    if (id >= 0) {
      symbols.push_back(id);
      last_unknown = false;
      continue;
    }
    if (spec_.bpe.byte_fallback && std::all_of(one.begin(), one.end(), [this](char c) {
          return byte_ids_[static_cast<uint8_t>(c)] >= 0;
        })) {
      for (const char c : one) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      last_unknown = false;
      continue;
    }
    if (spec_.bpe.unk_id < 0) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "the tokenizer has no token for the character {} and no unk_token to write instead",
          QuotedForMessage(one));
    }
    if (!(last_unknown && spec_.bpe.fuse_unk)) symbols.push_back(spec_.bpe.unk_id);
    last_unknown = true;
  }
  return {};
}

void Bpe::Merge(std::vector<int32_t>& symbols) const {
  const size_t n = symbols.size();
  if (n < 2) return;
  CARPOOL_CHECK(n < UINT32_MAX);
  // Symbols are a linked list in place: a merge keeps the left one and unlinks the right one (id
  // -1).
  std::vector<uint32_t> next(n), previous(n),
      rank(n, kNoRank);  // rank: of the pair that starts here
  std::vector<uint64_t> storage;
  storage.reserve(n);
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>{},
                                                                            std::move(storage));
  const auto offer = [&](uint32_t at) {
    rank[at] = next[at] < n ? Rank(symbols[at], symbols[next[at]]) : kNoRank;
    if (rank[at] != kNoRank) heap.push(static_cast<uint64_t>(rank[at]) << 32 | at);
  };
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // wraps to UINT32_MAX at the front
  }
  for (uint32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    const auto at = static_cast<uint32_t>(heap.top());
    const auto want = static_cast<uint32_t>(heap.top() >> 32);
    heap.pop();
    if (symbols[at] < 0 || rank[at] != want) continue;  // overtaken by another merge
    const uint32_t right = next[at];
    symbols[at] = spec_.bpe.merges[want].product;
    symbols[right] = -1;
    next[at] = next[right];
    if (next[at] < n) previous[next[at]] = at;
    offer(at);
    if (previous[at] != UINT32_MAX) offer(previous[at]);
  }
  std::erase(symbols, -1);
}

Status Bpe::Encode(std::string_view piece, bool added_tokens, Cache& cache,
                   std::vector<int32_t>& out) const {
  const bool cached = piece.size() <= kMaxCachedPieceBytes;
  if (cached) {
    if (const auto it = cache.pieces.find(std::string(piece)); it != cache.pieces.end()) {
      out.insert(out.end(), it->second.begin(), it->second.end());
      return {};
    }
  }
  std::vector<int32_t> symbols;
  if (spec_.bpe.ignore_merges) {
    const int32_t id = Find(spec_.byte_level ? VocabStringOfBytes(piece) : std::string(piece));
    if (id >= 0 && (added_tokens || !is_added_[static_cast<size_t>(id)])) symbols.push_back(id);
  }
  if (symbols.empty()) {
    RETURN_IF_ERROR(FirstSymbols(piece, symbols));
    Merge(symbols);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (cached) {
    if (cache.pieces.size() >= kMaxCachedPieces) cache.pieces.clear();
    cache.pieces.emplace(piece, std::move(symbols));
  }
  return {};
}

}  // namespace carpool
