// A/B of two running OpenAI-compatible servers: ours or anybody's.
//
// Speed: streamed completions, in blocks A B B A; a block counts with the median over its requests
// of the time per output token. Quality: the servers score the same prompts (echo and logprobs of
// /v1/completions), where both offer that. They report a few alternatives per token only, so KL is
// taken over those and one bucket for the rest, which can only make it smaller.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/ab.h"
#include "lab/server_scores.h"

namespace carpool {

struct ServerAbOptions {
  std::string text;     // prompts are cut from it
  std::string api_key;  // of both
  std::string model;    // name to ask for; empty: the one server A names first
  AbOptions ab;         // batch, rounds, steps, prompt, context, windows, min_effect, seed
};

/// "http://host:port", a path behind it is ignored.
struct ServerUrl {
  std::string host;
  uint16_t port = 80;
  std::string Text() const;
};
/// Errors: no http:// address.
Result<ServerUrl> ParseServerUrl(const std::string& text);

/// What one server does with the text.
struct ServerMeasured {
  std::string name;     // for the report: address and routing
  std::string model;    // id
  std::string routing;  // of Carpool servers
  std::optional<size_t> vocab_size;
  std::vector<std::vector<ScoredToken>> scored;  // [window * batch + stream], first tokens left out
  std::string why_not_scored;                    // when `scored` is empty
  Pace pace;
  double distinct_sum = 0.0;  // of blocks that told
  size_t distinct_count = 0;
};

class ServerUnderTest {
 public:
  /// Asks /v1/models. Errors: not reachable, no such model there.
  static Result<ServerUnderTest> Connect(const ServerUrl& url, const ServerAbOptions& options);

  const ServerMeasured& measured() const { return measured_; }
  /// Has the server score the prompts; a refusal is noted in why_not_scored. Errors: it went away.
  Status Score();
  /// One block of free-running decoding from the prompts of `round`; `timed` blocks count.
  Status Block(size_t round, bool timed);
  ServerMeasured Finish();

 private:
  ServerUnderTest(const ServerUrl& url, const ServerAbOptions& options)
      : url_(url), options_(&options) {}

  ServerUrl url_;
  const ServerAbOptions* options_;
  ServerMeasured measured_;
  std::vector<double> rates_;  // of blocks, tokens per second
};

/// Too few prompts in the text (says how many are needed), too few rounds.
Status CheckServerAb(const ServerAbOptions& options);

/// Both servers at once, interleaved. Errors: CheckServerAb's, Connect's; servers of different
/// models.
Result<AbReport> RunServerAb(const ServerUrl& a, const ServerUrl& b, const ServerAbOptions& options,
                             const std::function<void(size_t done, size_t total)>& progress);

/// One server after the other: `start` brings up side 0, then side 1, and says where it listens;
/// `stop` ends it. Drift does not cancel then, which the report says.
Result<AbReport> RunServerAbInTurn(const std::function<Result<ServerUrl>(size_t side)>& start,
                                   const std::function<void()>& stop,
                                   const ServerAbOptions& options,
                                   const std::function<void(size_t done, size_t total)>& progress);

/// KL(candidate || baseline) of two reported distributions: alternatives that both name, and the
/// rest as one.
double BucketedKl(const ScoredToken& candidate, const ScoredToken& baseline);

}  // namespace carpool
