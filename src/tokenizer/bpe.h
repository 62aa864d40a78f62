// Bpe: byte-pair encoding of one piece by merge ranks: the lowest rank merges first, the leftmost
// of equals.
//
// A heap of candidate pairs over a linked list of symbols: O(n log n) for a piece of n symbols, so
// a megabyte without a space is as harmless as prose. Sennrich et al., arXiv:1508.07909, in the
// byte-level form of GPT-2.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer_spec.h"

namespace carpool {

class Bpe {
 public:
  /// Pieces met before, for one Encode call; bounded.
  struct Cache {
    std::unordered_map<std::string, std::vector<int32_t>> pieces;
  };

  /// `spec` comes from ParseTokenizerJson and outlives this object at the same address.
  explicit Bpe(const TokenizerSpec& spec);

  /// Appends the ids of `piece` (bytes when spec.byte_level, else valid UTF-8). Without
  /// `added_tokens`, a piece that reads like an added token is not taken whole (ignore_merges).
  /// Error: InvalidArgument for a character without token when there is no unk_token.
  Status Encode(std::string_view piece, bool added_tokens, Cache& cache,
                std::vector<int32_t>& out) const;

  /// Id of the vocabulary string; -1 when there is none.
  int32_t Find(std::string_view vocab_string) const;

 private:
  Status FirstSymbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void Merge(std::vector<int32_t>& symbols) const;
  uint32_t Rank(int32_t left, int32_t right) const;

  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = UINT32_MAX;
  };

  const TokenizerSpec& spec_;
  std::unordered_map<std::string_view, int32_t> ids_;  // by vocabulary string
  std::array<int32_t, 256> byte_ids_{};  // the token of one byte: alphabet character or <0xNN>
  std::vector<bool> is_added_;           // by id
  std::vector<Slot> ranks_;              // open addressing, a power of two in size
  size_t mask_ = 0;
};

}  // namespace carpool
