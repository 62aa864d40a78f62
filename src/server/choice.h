// Choice: one sequence being generated for a client, from tokens to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "server/generation_spec.h"
#include "server/stop_matcher.h"
#include "tokenizer/stream_decoder.h"

namespace carpool {

/// A token and its log-probabilities, as shown to the client.
struct TokenRecord {
  int32_t token = -1;
  std::vector<TokenLogprob> logprobs;  // empty: the first prompt token has none
  size_t text_offset = 0;              // bytes of the choice's text before it
};

class Choice {
 public:
  Choice(const Tokenizer& tokenizer, const GenerationSpec& spec, size_t index, size_t prompt);

  /// Takes a message in. True: the engine need not go on (a stop string was found).
  bool Take(EngineMessage& message);

  size_t index() const { return index_; }
  size_t prompt() const { return prompt_; }
  bool finished() const { return !finish_reason_.empty(); }
  /// "stop", "length", "error", "cancelled"; "" while running.
  const std::string& finish_reason() const { return finish_reason_; }
  /// False until the engine's last message has come.
  bool engine_done() const { return engine_done_; }
  const std::string& error() const { return error_; }
  ErrorCode refused_code() const { return refused_code_; }
  bool refused() const { return refused_; }
  size_t output_tokens() const { return output_tokens_; }
  const RequestReport* report() const { return report_.get(); }

  /// Text and token records since the last call. While an echoed prompt is being scored there is
  /// no text yet.
  std::string TakeText();
  std::vector<TokenRecord> TakeRecords();

 private:
  void AddText(std::string text) {
    text_bytes_ += text.size();
    fresh_text_ += text;
  }

  const GenerationSpec& spec_;
  size_t index_;
  size_t prompt_;
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::string fresh_text_;
  std::vector<TokenRecord> fresh_records_;
  size_t text_bytes_ = 0;
  size_t decoded_bytes_ = 0;
  size_t output_tokens_ = 0;
  size_t scored_prompt_tokens_ = 0;
  std::string finish_reason_;
  bool engine_done_ = false;
  bool refused_ = false;
  ErrorCode refused_code_ = ErrorCode::kInternal;
  std::string error_;
  std::unique_ptr<RequestReport> report_;
};

}  // namespace carpool
