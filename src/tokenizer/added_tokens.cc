#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace carpool {

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view content) {
  uint32_t at = 0;
  for (const char c : content) {
    const auto [it, fresh] = nodes_[at].children.try_emplace(static_cast<uint8_t>(c),
                                                             static_cast<uint32_t>(nodes_.size()));
    at = it->second;
    if (fresh) nodes_.emplace_back();
  }
  nodes_[at].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text, size_t pos) const {
  Match best;
  const Node* node = &nodes_[0];
  for (size_t i = pos; i < text.size(); ++i) {
    const auto it = node->children.find(static_cast<uint8_t>(text[i]));
    if (it == node->children.end()) break;
    node = &nodes_[it->second];
    if (node->token >= 0) best = {i + 1, node->token};
  }
  return best;
}

void AddedTokenMatcher::Split(std::string_view text, std::vector<Part>& parts) const {
  bool starts[256] = {};
  for (const auto& [byte, child] : nodes_[0].children) starts[byte] = true;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    if (!starts[static_cast<uint8_t>(text[pos])]) {
      ++pos;
      continue;
    }
    const Match match = LongestAt(text, pos);
    if (match.token < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
    size_t begin = pos;
    size_t end = match.end;
    if (token.single_word && ((begin > 0 && IsWordCharacter(CodePointBefore(text, begin))) ||
                              (end < text.size() && IsWordCharacter(CodePointAt(text, end))))) {
      pos = end;
      continue;
    }
    if (token.lstrip) {
      while (begin > done && IsWhiteSpace(CodePointBefore(text, begin))) {
        --begin;
        while ((static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
      }
    }
    if (token.rstrip) {
      while (end < text.size() && IsWhiteSpace(CodePointAt(text, end))) end += CharBytes(text, end);
    }
    if (begin > done) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, text.substr(begin, end - begin)});
    done = pos = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
}

}  // namespace carpool
