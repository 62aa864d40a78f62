// Generation: one client's request for text under way: its choices, and the answer as it grows.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "server/choice.h"
#include "server/exchange.h"
#include "server/response_format.h"

namespace carpool {

class ServerContext;

/// Lives on the I/O thread, owned by the context's table until the engine has let go of all of its
/// choices.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(ServerContext& context, std::shared_ptr<Exchange> exchange, GenerationSpec spec);

  /// Submits every choice.
  void Start();
  void Take(size_t choice, EngineMessage message);
  /// Writes what the last messages brought; once per batch of messages.
  void Flush();
  bool stale() const { return stale_; }
  void set_stale() { stale_ = true; }

 private:
  void Abandon();
  void Observe(const Choice& choice);
  void Complete();
  void Fail();
  std::string Usage() const;

  ServerContext& context_;
  std::shared_ptr<Exchange> exchange_;
  GenerationSpec spec_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<uint64_t> ids_;
  std::unique_ptr<ResponseFormat> format_;
  bool streaming_ = false;  // the head of the stream is out
  bool answered_ = false;
  bool stale_ = false;  // on the list of those to flush
  std::chrono::steady_clock::time_point start_;
  std::vector<std::chrono::steady_clock::time_point> last_token_;
};

}  // namespace carpool
