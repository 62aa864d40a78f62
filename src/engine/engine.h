// Engine: continuous batching over one model. Requests join and leave at every step; one step is
// one batch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/policy_chooser.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/routing_recorder.h"
#include "engine/sequence.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

namespace carpool {

struct EngineOptions {
  size_t threads = 1;
  Activations activations = Activations::kF32;
  std::shared_ptr<const PolicySpec> policy;  // null = vanilla
  std::shared_ptr<PolicyChooser> chooser;    // null = the policy above for every step
  size_t max_running = 64;                   // sequences that decode together
  size_t max_batch_tokens = 512;             // token rows of one step, >= max_running
  size_t max_waiting = SIZE_MAX;             // queued requests; one more is refused (kExhausted)
  /// Decode steps between two steps that also take prompt chunks, while anything decodes.
  size_t continuous_decode_steps = 1;
  bool prefix_cache = false;
  size_t context = 0;      // 0 = the model's own limit
  size_t kv_tokens = 0;    // tokens the cache holds; 0 = max_running * context, at most 4 GiB
  size_t kv_bytes = 0;     // the same as a budget in bytes; 0 = not given
  bool commit_kv = false;  // take the cache's memory at once, not as it is first used
  LoadOptions load;
};

/// One step, for those who keep statistics. Views are valid until the next step.
struct StepReport {
  size_t rows = 0;
  size_t decode_rows = 0;
  uint64_t total_ns = 0, attention_ns = 0, router_ns = 0, experts_ns = 0, dense_ns = 0, head_ns = 0;
  uint64_t expert_bytes = 0;
  uint64_t assignments = 0, piggybacks = 0, dropped = 0;  // over rows and layers
};

/// Where the pages of the KV cache are. leaked: neither free, nor a sequence's, nor the tree's.
struct PageAccount {
  size_t total = 0, free = 0, running = 0, cached = 0, leaked = 0;
};

class Engine {
 public:
  /// Loads model and tokenizer from `dir`. Not thread-safe: one thread submits, cancels and steps.
  static Result<std::unique_ptr<Engine>> Load(const std::string& dir, const EngineOptions& options);

  /// What Submit would refuse whatever the load: prompt too long, ids out of range, bad sampling.
  /// Reads immutable state only: any thread may call it.
  Status Validate(const Request& request) const;
  /// Queues a request. Errors (those of Validate; a full queue) leave the engine as it was.
  Result<uint64_t> Submit(Request request, TokenSink* sink);
  /// Ends a request at once, with a kCancelled event. Unknown ids are ignored.
  void Cancel(uint64_t request_id);
  /// Runs one step: every decoding sequence advances by a token, waiting prompts advance by chunks.
  /// False: nothing to do.
  bool Step();
  bool idle() const { return waiting_.empty() && running_.empty(); }
  size_t num_running() const { return running_.size(); }
  size_t num_waiting() const { return waiting_.size(); }

  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Router& router() const { return *router_; }
  ThreadPool& pool() { return *pool_; }
  KvCache& kv() { return *kv_; }
  size_t context() const { return context_; }
  /// Changes the policy for the steps to come. Errors leave the old one in place.
  Status SetPolicy(std::shared_ptr<const PolicySpec> policy);
  /// From the next step on `chooser` picks the policies; null: the one in force stays.
  void SetChooser(std::shared_ptr<PolicyChooser> chooser) { options_.chooser = std::move(chooser); }
  const PolicyChooser* chooser() const { return options_.chooser.get(); }
  void set_observer(RoutingObserver* observer) { recorder_->set_next(observer); }
  const RoutingRecorder& recorder() const { return *recorder_; }
  const StepReport& last_step() const { return last_step_; }
  PageAccount AccountPages() const;
  /// Prompt tokens looked up in the prefix cache, and found.
  uint64_t prefix_queries() const { return prefix_queries_; }
  uint64_t prefix_hits() const { return prefix_hits_; }
  /// Seconds the longest waiting request has waited; 0 when none waits.
  double oldest_wait_seconds() const;
  /// Records the routing of every following step (routing/trace.h), across
  /// changes of policy; null stops. The sink outlives the engine or the next call.
  void set_trace(TraceSink* sink, TraceDetail detail);

  /// Statistics of steps with decode rows only, and of steps with any prefill row.
  const StepStats& decode_stats() const { return decode_stats_; }
  const StepStats& prefill_stats() const { return prefill_stats_; }
  void ClearStats();
  /// Bytes of step scratch held; constant once warmed up.
  size_t scratch_bytes() const { return arena_.capacity_bytes(); }

 private:
  Engine() = default;
  void ChoosePolicy();
  /// Tells the trace which request each row of the step belongs to.
  void TraceBatch();
  // engine_schedule.cc
  void Admit();
  void FormBatch();
  void AddPrefill(size_t budget);
  bool IsExact(const Sequence& sequence) const;
  void Remember(Sequence& sequence);
  // engine.cc
  void AfterRow(Sequence& sequence, size_t row);
  void TakeStepReport(const StepStats& before, const StepStats& after);
  void FillReport(Sequence& sequence);
  void Deliver(Sequence& sequence, size_t row, std::span<float> logits);
  void Finish(Sequence& sequence, FinishReason reason, int32_t token, std::string_view error,
              std::span<const float> logits);
  void AddRow(Sequence& sequence, uint32_t index, size_t position, RowPhase phase,
              bool wants_logits);
  std::string NotANumber(size_t row) const;

  // Declaration order is lifetime order: what comes later uses what stands above.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<PrefixCache> prefix_;  // null: off
  std::unique_ptr<RoutingRecorder> recorder_;
  Arena arena_;
  EngineOptions options_;
  size_t context_ = 0;
  bool vanilla_ = true;      // of the current policy
  uint32_t policy_tag_ = 0;  // of pages written under the current policy; counts up from 1
  TraceSink* trace_ = nullptr;
  TraceDetail trace_detail_;

  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  uint64_t next_id_ = 1;

  // The batch of the step being formed, as parallel arrays; reserved once.
  std::vector<int32_t> tokens_;
  std::vector<uint32_t> positions_;
  std::vector<uint32_t> sequences_;
  std::vector<RowInfo> rows_;
  std::vector<uint8_t> wants_logits_;
  std::vector<const PageTable*> tables_;
  std::vector<float> raw_logits_;
  std::vector<int32_t> bad_layers_;
  std::vector<uint8_t> captured_;
  bool has_prefill_ = false;
  size_t decode_rows_ = 0;
  size_t decode_steps_in_a_row_ = 0;
  size_t prefill_turn_ = 0;  // which sequence gets the first share of the next prefill budget
  uint64_t prefix_queries_ = 0;
  uint64_t prefix_hits_ = 0;
  StepReport last_step_;
  StepStats step_before_;  // scratch of Step

  StepStats decode_stats_;
  StepStats prefill_stats_;
};

}  // namespace carpool
