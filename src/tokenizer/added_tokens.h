// AddedTokenMatcher: finds the tokens that are cut out of a text before anything else happens to
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer_spec.h"

namespace carpool {

class AddedTokenMatcher {
 public:
  /// A stretch of text: an added token (id >= 0) with the white space it swallowed, or plain text
  /// (id < 0).
  struct Part {
    int32_t id = -1;
    std::string_view text;
  };

  /// `content` may differ from the token's own (it is normalised for normalized=true tokens).
  void Add(const AddedToken& token, std::string_view content);

  /// Leftmost, then longest match; appends the parts in order, none empty. Views into `text` (valid
  /// UTF-8). Thread-safe.
  void Split(std::string_view text, std::vector<Part>& parts) const;

  bool empty() const { return tokens_.empty(); }

 private:
  struct Node {
    std::unordered_map<uint8_t, uint32_t> children;
    int32_t token = -1;  // index into tokens_
  };
  struct Match {
    size_t end = 0;
    int32_t token = -1;
  };
  Match LongestAt(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
};

}  // namespace carpool
