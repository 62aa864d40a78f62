#include "engine/complete.h"

#include "tokenizer/stream_decoder.h"

namespace carpool {
namespace {

class Collector : public TokenSink {
 public:
  Collector(const Tokenizer& tokenizer, size_t index, const TextCallback& on_text)
      : decoder_(tokenizer, /*skip_special=*/true, /*continues=*/true),
        index_(index),
        on_text_(on_text) {}

  void OnToken(const TokenEvent& event) override {
    if (event.token >= 0) {
      result_.token_ids.push_back(event.token);
      if (event.finish != FinishReason::kStop) Emit(decoder_.Feed(event.token));
    }
    if (event.finish == FinishReason::kNone) return;
    Emit(decoder_.Finish());
    result_.finish = event.finish;
    result_.error = event.error;
  }
  Completion Take() { return std::move(result_); }

 private:
  void Emit(std::string text) {
    if (text.empty()) return;
    if (on_text_) on_text_(index_, text);
    result_.text += text;
  }

  StreamDecoder decoder_;
  size_t index_;
  const TextCallback& on_text_;
  Completion result_;
};

}  // namespace

Result<std::vector<Completion>> Complete(Engine& engine, std::vector<Request> requests,
                                         const TextCallback& on_text) {
  std::vector<std::unique_ptr<Collector>> collectors;
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    collectors.push_back(std::make_unique<Collector>(engine.tokenizer(), i, on_text));
    auto id = engine.Submit(std::move(requests[i]), collectors[i].get());
    if (!id) {
      for (uint64_t submitted : ids) engine.Cancel(submitted);
      return MakeError(id.error().code, "prompt {}: {}", i + 1, id.error().message);
    }
    ids.push_back(*id);
  }
  while (engine.Step()) {
  }
  std::vector<Completion> results;
  for (auto& c : collectors) results.push_back(c->Take());
  return results;
}

}  // namespace carpool
