// PreTokenizer: cuts a text into the pieces that byte-pair encoding may not look across.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/split_regex.h"
#include "tokenizer/tokenizer_spec.h"

namespace carpool {

/// Pieces of one text. Views into the text or into `owned` (where a step had to write).
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;
};

class PreTokenizer {
 public:
  /// Errors: those of SplitRegex::Compile.
  static Result<PreTokenizer> Make(const std::vector<PreTokenizerStep>& steps,
                                   const std::string& where);

  /// Cuts `text` (valid UTF-8, must outlive `pieces`). `at_start`: the text begins the user's text,
  /// i.e. nothing and no added token stands before it. Each step sees the pieces of the one before,
  /// alone. Thread-safe.
  Status Split(std::string_view text, bool at_start, RegexScratch& scratch, Pieces& pieces) const;

 private:
  std::vector<PreTokenizerStep> steps_;
  std::vector<SplitRegex> regexes_;  // of the steps that have one
  std::vector<int> regex_of_step_;   // -1: none
};

}  // namespace carpool
