#include "engine/engine_loop.h"

#include <algorithm>
#include <cmath>

namespace carpool {
namespace {

/// log-softmax of `logits` at `token`, then of the `top` best (ties: lower id first).
std::vector<TokenLogprob> Logprobs(std::span<const float> logits, int32_t token, size_t top) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float l : logits) sum += std::exp(static_cast<double>(l) - max);
  const double log_sum = std::log(sum) + max;
  const auto at = [&](int32_t id) {
    return TokenLogprob{
        id, static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum)};
  };
  std::vector<TokenLogprob> result = {at(token)};
  top = std::min(top, logits.size());
  if (top == 0) return result;
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(top), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float la = logits[static_cast<size_t>(a)];
                      const float lb = logits[static_cast<size_t>(b)];
                      return la != lb ? la > lb : a < b;
                    });
  for (size_t i = 0; i < top; ++i) result.push_back(at(ids[i]));
  return result;
}

}  // namespace

/// Copies the engine's events; lives on the engine thread.
class EngineLoop::Mailbox final : public TokenSink {
 public:
  struct Wish {
    int logprobs = -1;
    std::vector<int32_t> prompt;  // of requests with prompt_logits
  };

  void Register(uint64_t id, Wish wish) { wishes_.emplace(id, std::move(wish)); }
  void Refuse(uint64_t id, const Error& error) {
    EngineMessage m;
    m.kind = EngineMessage::Kind::kRefused;
    m.request_id = id;
    m.code = error.code;
    m.error = error.message;
    messages_.push_back(std::move(m));
    wishes_.erase(id);
  }

  void OnToken(const TokenEvent& event) override {
    const auto wish = wishes_.find(event.request_id);
    if (wish == wishes_.end()) return;  // a group that was refused after all
    EngineMessage m;
    m.request_id = event.request_id;
    m.token = event.token;
    m.finish = event.finish;
    m.error = event.error;
    if (event.token >= 0 && wish->second.logprobs >= 0) {
      m.logprobs = Logprobs(event.logits, event.token, static_cast<size_t>(wish->second.logprobs));
    }
    if (event.report != nullptr) m.report = std::make_unique<RequestReport>(*event.report);
    if (event.finish != FinishReason::kNone) wishes_.erase(wish);
    messages_.push_back(std::move(m));
  }

  void OnPromptLogits(uint64_t id, size_t position, std::span<const float> logits) override {
    const auto wish = wishes_.find(id);
    if (wish == wishes_.end()) return;
    EngineMessage m;
    m.kind = EngineMessage::Kind::kPromptLogprob;
    m.request_id = id;
    m.token = wish->second.prompt[position + 1];
    m.logprobs = Logprobs(logits, m.token, static_cast<size_t>(std::max(wish->second.logprobs, 0)));
    messages_.push_back(std::move(m));
  }

  bool empty() const { return messages_.empty(); }
  std::vector<EngineMessage> Take() { return std::exchange(messages_, {}); }

 private:
  std::unordered_map<uint64_t, Wish> wishes_;
  std::vector<EngineMessage> messages_;
};

EngineLoop::EngineLoop(std::unique_ptr<Engine> engine, Hooks hooks)
    : engine_(std::move(engine)),
      hooks_(std::move(hooks)),
      mailbox_(std::make_unique<Mailbox>()),
      thread_([this] { Run(); }) {}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineLoop::Post(std::function<void(Engine&)> fn) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back([this, fn = std::move(fn)] { fn(*engine_); });
  }
  wake_.notify_one();
}

void EngineLoop::Submit(std::vector<Submission> group) {
  auto shared = std::make_shared<std::vector<Submission>>(std::move(group));
  Post([this, shared](Engine&) { SubmitGroup(*shared); });
}

void EngineLoop::Cancel(uint64_t request_id) {
  Post([request_id](Engine& engine) { engine.Cancel(request_id); });
}

void EngineLoop::SubmitGroup(std::vector<Submission>& group) {
  std::vector<uint64_t> ids;
  for (const Submission& s : group) ids.push_back(s.request.id);
  for (size_t i = 0; i < group.size(); ++i) {
    Submission& s = group[i];
    Mailbox::Wish wish{s.logprobs, {}};
    if (s.request.prompt_logits) wish.prompt = s.request.prompt;
    auto submitted = engine_->Submit(std::move(s.request), mailbox_.get());
    if (submitted) {
      mailbox_->Register(ids[i], std::move(wish));
      continue;
    }
    for (uint64_t id : ids) mailbox_->Refuse(id, submitted.error());
    for (size_t done = 0; done < i; ++done) engine_->Cancel(ids[done]);
    return;
  }
}

void EngineLoop::TakeCommands(bool may_wait) {
  std::vector<std::function<void()>> commands;
  {
    std::unique_lock lock(mutex_);
    if (may_wait) wake_.wait(lock, [this] { return stop_ || !commands_.empty(); });
    if (stop_) return;
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
}

void EngineLoop::Flush() {
  if (!mailbox_->empty()) hooks_.deliver(mailbox_->Take());
}

void EngineLoop::Run() {
  const auto stopped = [this] {
    const std::lock_guard lock(mutex_);
    return stop_;
  };
  while (!stopped()) {
    TakeCommands(engine_->idle());
    Flush();
    if (engine_->Step()) {
      if (hooks_.after_step) hooks_.after_step(*engine_);
      Flush();
    }
  }
}

}  // namespace carpool
