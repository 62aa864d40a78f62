// SplitRegex: the regular expression of a "Split" pre-tokenizer, run by PCRE2 with bounds on its
// work.
//
// tokenizer.json patterns are written for Oniguruma. Where the two engines differ, the pattern is
// translated
// (\s is Unicode White_Space) or refused, never run with another meaning. Patterns and texts may
// both be hostile: every match has a step limit and every text a budget of CPU time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace carpool {

/// The working memory of matching and the CPU time left for one text. Make one per Encode call.
class RegexScratch {
 public:
  /// The budget of a text of `text_bytes`: 2 s of this thread's CPU time and 2 us per byte, about
  /// 20 times the usual need.
  explicit RegexScratch(size_t text_bytes);
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class SplitRegex;
  struct State;
  std::unique_ptr<State> state_;
};

class SplitRegex {
 public:
  /// Errors: Unsupported (a construct whose meaning differs between engines, a pattern that can
  /// match nothing), Corrupt (not a regular expression). `where` begins the message.
  static Result<SplitRegex> Compile(const std::string& pattern, const std::string& where);
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

  /// "Isolated": appends the matches and the gaps between them, in order, as views into `text`
  /// (valid UTF-8). Thread-safe. Error: InvalidArgument when the pattern needs more work on this
  /// text than the bounds allow.
  Status Split(std::string_view text, RegexScratch& scratch,
               std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit SplitRegex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace carpool
