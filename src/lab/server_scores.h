// Log-probabilities of prompts from an OpenAI-compatible server: echo and logprobs of
// /v1/completions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace carpool {

/// One token of a prompt as a server sees it.
struct ScoredToken {
  std::string text;
  double logprob = 0.0;
  std::vector<std::pair<std::string, double>> top;  // alternatives and their log-probabilities
};

class PromptScorer {
 public:
  /// `carpool`: the server is ours, so the prompt's rows can run as decode rows, which is what
  /// policies act on.
  PromptScorer(std::string host, uint16_t port, std::string api_key, std::string model,
               bool carpool);

  /// Every token of each prompt but the first, which has no log-probability. All prompts go in one
  /// request, so that they share rides. Empty: the server does not offer it (refusal() says what it
  /// answered). Errors: it cannot be reached.
  Result<std::vector<std::vector<ScoredToken>>> Score(const std::vector<std::string>& prompts);
  const std::string& refusal() const { return refusal_; }

 private:
  struct Form {           // of a request
    size_t max_tokens;    // some servers want at least one
    size_t alternatives;  // some give at most five
  };
  bool Read(const std::string& body, size_t prompts, size_t generated,
            std::vector<std::vector<ScoredToken>>& out);

  std::string host_;
  uint16_t port_;
  std::string api_key_, model_, refusal_;
  bool carpool_;
  std::vector<Form> forms_ = {{0, 20}, {1, 20}, {1, 5}};  // still to be tried; the first works
};

}  // namespace carpool
