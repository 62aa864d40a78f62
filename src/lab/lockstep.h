// Lockstep: B sequences that advance together, one position per step; each step is one decode batch
// of B rows.
//
// What perplexity, the A/B comparison and the decode benchmark have in common: they choose the
// tokens themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "layers/step.h"
#include "models/model.h"

namespace carpool {

class Lockstep {
 public:
  /// `max_tokens` positions per sequence. Model, pool and router outlive this. The router takes at
  /// least `batch` rows.
  Lockstep(const Model& model, ThreadPool& pool, Router& router, Activations activations,
           size_t batch, size_t max_tokens);
  ~Lockstep();
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;

  size_t batch() const { return batch_; }
  size_t position() const { return position_; }

  /// Feeds tokens[b] to sequence b at the current position. Returns the logits [batch, vocab],
  /// valid until the next call.
  MatView<const float> Step(std::span<const int32_t> tokens);
  /// Feeds `prompts` [batch, n] as prefill rows in chunks, so that a benchmark can start deep in
  /// the context.
  void Prefill(MatView<const int32_t> prompts);
  /// Of a batch of one: feeds the prompt in one step and computes the logits of its last token, as
  /// the engine does before the first token it generates.
  MatView<const float> PrefillForLogits(std::span<const int32_t> prompt);
  /// Fills every sequence's cache up to `tokens` positions with noise, as if they had been fed: a
  /// benchmark can start deep in the context without computing it.
  void PretendPrefill(size_t tokens, uint64_t seed);
  /// The next Step writes position `tokens` again; what lies behind is forgotten.
  void Rewind(size_t tokens);
  /// Back to empty caches.
  void Reset();

  void set_router(Router& router) { router_ = &router; }
  void set_observer(RoutingObserver* observer) { observer_ = observer; }
  StepStats& stats() { return stats_; }

 private:
  void Forward(std::span<const int32_t> tokens, std::span<const uint32_t> positions,
               std::span<const uint32_t> sequences, RowPhase phase, bool wants_logits);

  const Model& model_;
  ThreadPool& pool_;
  Router* router_;
  RoutingObserver* observer_ = nullptr;
  Activations activations_;
  size_t batch_;
  size_t max_tokens_;
  size_t position_ = 0;
  KvCache kv_;
  std::vector<PageTable> tables_;
  std::vector<const PageTable*> table_pointers_;
  std::vector<RowInfo> rows_;
  std::vector<uint8_t> wants_;
  std::vector<uint32_t> positions_;
  std::vector<uint32_t> sequences_;
  Arena arena_;
  std::vector<float> logits_;
  StepStats stats_;
};

/// -log softmax(logits)[target] in nats, the sum in double.
double CrossEntropy(std::span<const float> logits, int32_t target);

}  // namespace carpool
