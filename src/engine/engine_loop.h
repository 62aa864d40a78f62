// EngineLoop: the engine on a thread of its own, behind a thread-safe front.
//
// Other threads submit, cancel and post; the loop takes their commands between steps, so a cancel
// acts within one step. What requests produce is copied into messages and handed over once per
// step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace carpool {

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

/// One thing that happened to a request.
struct EngineMessage {
  enum class Kind : uint8_t { kToken, kPromptLogprob, kRefused };
  Kind kind = Kind::kToken;
  uint64_t request_id = 0;
  int32_t token = -1;  // kToken: -1 with an end that brings no token
  FinishReason finish = FinishReason::kNone;
  ErrorCode code = ErrorCode::kInternal;  // kRefused
  std::string error;                      // kRefused, and finish == kError
  /// When asked for: first the token itself (or the prompt token at `position` + 1), then the best.
  std::vector<TokenLogprob> logprobs;
  std::unique_ptr<RequestReport> report;  // with finish != kNone
};

/// A request and how many alternatives' log-probabilities its messages carry (-1: none at all).
struct Submission {
  Request request;  // id from NewId()
  int logprobs = -1;
};

class EngineLoop {
 public:
  struct Hooks {
    /// On the engine thread, after each step or command that produced messages.
    std::function<void(std::vector<EngineMessage>)> deliver;
    /// On the engine thread, after each step.
    std::function<void(const Engine&)> after_step;
  };

  EngineLoop(std::unique_ptr<Engine> engine, Hooks hooks);
  /// Stops after the step in progress; requests still running are dropped without a message.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  /// Never 0, never twice the same.
  uint64_t NewId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  /// All or none are queued; a refusal is one kRefused message per request.
  void Submit(std::vector<Submission> group);
  void Cancel(uint64_t request_id);
  /// Runs `fn` on the engine thread between two steps.
  void Post(std::function<void(Engine&)> fn);

  /// What never changes after loading: any thread may read it.
  const Model& model() const { return engine_->model(); }
  const Tokenizer& tokenizer() const { return engine_->tokenizer(); }
  size_t context() const { return engine_->context(); }
  Status Validate(const Request& request) const { return engine_->Validate(request); }

 private:
  class Mailbox;
  void Run();
  void TakeCommands(bool may_wait);
  void SubmitGroup(std::vector<Submission>& group);
  void Flush();

  std::unique_ptr<Engine> engine_;
  Hooks hooks_;
  std::unique_ptr<Mailbox> mailbox_;
  std::atomic<uint64_t> next_id_{1};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stop_ = false;                            // guarded by mutex_
  std::thread thread_;
};

}  // namespace carpool
