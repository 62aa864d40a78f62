// StreamDecoder: token ids in, text out, never half a character.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace carpool {

/// For one sequence of tokens; not thread-safe. What Feed and Finish return, joined, equals
/// Tokenizer::Decode of all ids.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive it. `continues`: the ids go on from earlier text, so that a
  /// SentencePiece-like vocabulary's first space is a real one.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special, bool continues = false)
      : tokenizer_(&tokenizer),
        skip_special_(skip_special),
        strip_space_(!continues && tokenizer.strips_first_space()) {}

  /// The characters that `id` completes, possibly none; U+FFFD for bytes that can no longer become
  /// a character. An id without a token adds nothing.
  std::string Feed(int32_t id);
  /// U+FFFD if a character is still open; afterwards a new text may begin.
  std::string Finish();
  /// True while bytes of an unfinished character are held back.
  bool pending() const { return utf8_.pending(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool strip_space_;
  Utf8Stream utf8_;
};

}  // namespace carpool
