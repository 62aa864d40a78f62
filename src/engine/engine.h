// Engine: continuous batching over one model. Requests join and leave at every step; one step is
// one batch.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/policy_chooser.h"
#include "engine/request.h"
#include "models/model.h"
#include "tokenizer/tokenizer.h"

namespace carpool {

struct EngineOptions {
  size_t threads = 1;
  Activations activations = Activations::kF32;
  std::shared_ptr<const PolicySpec> policy;  // null = vanilla
  std::shared_ptr<PolicyChooser> chooser;    // null = the policy above for every step
  size_t max_running = 64;                   // sequences that decode together
  size_t max_batch_tokens = 512;             // token rows of one step
  size_t context = 0;                        // 0 = the model's own limit
  size_t kv_tokens = 0;  // tokens the cache holds; 0 = max_running * context, at most 4 GiB
  LoadOptions load;
};

class Engine {
 public:
  /// Loads model and tokenizer from `dir`. Not thread-safe: one thread submits, cancels and steps.
  static Result<std::unique_ptr<Engine>> Load(const std::string& dir, const EngineOptions& options);

  /// Queues a request. Errors (prompt too long, ids out of range, bad sampling) leave the engine as
  /// it was.
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
  void set_observer(RoutingObserver* observer) { observer_ = observer; }
  /// Records the routing of every following step (routing/trace.h) at `level` 0...2, across changes of policy; null
  /// stops. The sink outlives the engine or the next call.
  void set_trace(TraceSink* sink, int level);

  /// Statistics of steps with decode rows only, and of steps with any prefill row.
  const StepStats& decode_stats() const { return decode_stats_; }
  const StepStats& prefill_stats() const { return prefill_stats_; }
  void ClearStats();
  /// Bytes of step scratch held; constant once warmed up.
  size_t scratch_bytes() const { return arena_.capacity_bytes(); }

 private:
  struct Sequence {
    uint64_t id = 0;
    Request request;
    TokenSink* sink = nullptr;
    PageTable table;
    std::vector<int32_t> output;
    size_t cached = 0;  // tokens whose cache entries are written
    bool done = false;

    int32_t TokenAt(size_t position) const {
      return position < request.prompt.size() ? request.prompt[position]
                                              : output[position - request.prompt.size()];
    }
    size_t length() const { return request.prompt.size() + output.size(); }
  };

  Engine() = default;
  void ChoosePolicy();
  void Admit();
  void FormBatch();
  void Deliver(Sequence& sequence, std::span<float> logits);
  void Finish(Sequence& sequence, FinishReason reason, int32_t token, std::string_view error,
              std::span<const float> logits);
  void AddRow(Sequence& sequence, uint32_t index, size_t position, RowPhase phase,
              bool wants_logits);

  // Declaration order is lifetime order: what comes later uses what stands above.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Sampler> sampler_;
  Arena arena_;
  EngineOptions options_;
  size_t context_ = 0;
  RoutingObserver* observer_ = nullptr;
  TraceSink* trace_ = nullptr;
  int trace_level_ = 0;

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
  bool has_prefill_ = false;

  StepStats decode_stats_;
  StepStats prefill_stats_;
};

}  // namespace carpool
