#include "engine/engine.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/log.h"

namespace carpool {
namespace {

constexpr size_t kDefaultKvBytes = size_t{4} << 30;

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

Result<std::unique_ptr<Engine>> Engine::Load(const std::string& dir, const EngineOptions& options) {
  std::unique_ptr<Engine> e(new Engine());
  e->options_ = options;
  e->pool_ = std::make_unique<ThreadPool>(options.threads);
  ASSIGN_OR_RETURN(e->model_, Model::Load(dir, *e->pool_, options.load));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(dir));
  e->tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));

  const ModelConfig& config = e->model_->config();
  if (e->tokenizer_->vocab_size() > config.vocab_size) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: tokenizer.json has ids up to {}, config.json's vocab_size is {}", dir,
                     e->tokenizer_->vocab_size() - 1, config.vocab_size);
  }
  e->context_ = options.context == 0 ? config.max_position : options.context;
  if (e->context_ > config.max_position) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "context: wanted at most the model's {} tokens, got {}", config.max_position,
                     e->context_);
  }
  const size_t per_token = std::max<size_t>(e->model_->kv_layout().BytesPerToken(), 1);
  size_t kv_tokens = options.kv_tokens;
  if (kv_tokens == 0) {
    kv_tokens = std::min(options.max_running * e->context_,
                         std::max(kDefaultKvBytes / per_token, e->context_));
  }
  e->kv_ = std::make_unique<KvCache>(e->model_->kv_layout(), DivCeil(kv_tokens, kPageTokens));
  RETURN_IF_ERROR(e->SetPolicy(options.policy));

  std::vector<uint8_t> allowed(config.vocab_size, 0);
  for (size_t id = 0; id < e->tokenizer_->vocab_size(); ++id) {
    allowed[id] = e->tokenizer_->HasToken(static_cast<int32_t>(id)) ? 1 : 0;
  }
  e->sampler_ = std::make_unique<Sampler>(std::move(allowed));
  e->raw_logits_.resize(config.vocab_size);
  const size_t max_rows = options.max_batch_tokens;
  e->tokens_.reserve(max_rows);
  e->positions_.reserve(max_rows);
  e->sequences_.reserve(max_rows);
  e->rows_.reserve(max_rows);
  e->wants_logits_.reserve(max_rows);
  e->tables_.reserve(options.max_running);
  e->running_.reserve(options.max_running);
  return e;
}

Status Engine::SetPolicy(std::shared_ptr<const PolicySpec> policy) {
  if (policy == nullptr) {
    ASSIGN_OR_RETURN(policy, ParsePolicy("vanilla"));
  }
  const ModelConfig& config = model_->config();
  ASSIGN_OR_RETURN(router_, Router::Make(config.gate, std::move(policy), config.NumMoeLayers(),
                                         options_.max_batch_tokens));
  router_->set_trace(trace_, trace_level_);
  return {};
}

void Engine::set_trace(TraceSink* sink, int level) {
  trace_ = sink;
  trace_level_ = level;
  router_->set_trace(sink, level);
}

Result<uint64_t> Engine::Submit(Request request, TokenSink* sink) {
  const size_t vocab = model_->config().vocab_size;
  if (request.prompt.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "the prompt is empty; wanted at least one token");
  }
  for (int32_t id : request.prompt) {
    if (id < 0 || static_cast<size_t>(id) >= vocab) {
      return MakeError(ErrorCode::kInvalidArgument, "prompt: token id {} is not in [0, {})", id,
                       vocab);
    }
  }
  if (request.max_tokens == 0)
    return MakeError(ErrorCode::kInvalidArgument, "max_tokens: wanted at least 1, got 0");
  if (request.prompt.size() > context_ || request.max_tokens > context_ - request.prompt.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the prompt has {} tokens and {} more were asked for, but the context is {}; "
                     "shorten the prompt or "
                     "ask for fewer",
                     request.prompt.size(), request.max_tokens, context_);
  }
  if (DivCeil(request.prompt.size() + request.max_tokens, kPageTokens) > kv_->num_pages()) {
    return MakeError(ErrorCode::kExhausted,
                     "the request needs {} tokens of KV cache, which holds {} in all",
                     request.prompt.size() + request.max_tokens, kv_->num_pages() * kPageTokens);
  }
  RETURN_IF_ERROR(ValidateSampling(request.sampling, vocab));
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->request = std::move(request);
  sequence->sink = sink;
  sequence->output.reserve(sequence->request.max_tokens);
  sequence->table.pages.reserve(
      DivCeil(sequence->request.prompt.size() + sequence->request.max_tokens, kPageTokens));
  const uint64_t id = sequence->id;
  waiting_.push_back(std::move(sequence));
  return id;
}

void Engine::Cancel(uint64_t request_id) {
  for (auto* list : {&running_}) {
    for (auto& s : *list) {
      if (s->id == request_id && !s->done) Finish(*s, FinishReason::kCancelled, -1, {}, {});
    }
  }
  std::erase_if(running_, [](const auto& s) { return s->done; });
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if ((*it)->id != request_id) continue;
    Finish(**it, FinishReason::kCancelled, -1, {}, {});
    waiting_.erase(it);
    return;
  }
}

void Engine::Admit() {
  // First come, first served; a request is admitted when its whole length fits, so that it can
  // never starve midway.
  while (!waiting_.empty() && running_.size() < options_.max_running) {
    Sequence& next = *waiting_.front();
    if (!kv_->Grow(next.table, next.request.prompt.size() + next.request.max_tokens)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::AddRow(Sequence& sequence, uint32_t index, size_t position, RowPhase phase,
                    bool wants_logits) {
  tokens_.push_back(sequence.TokenAt(position));
  positions_.push_back(static_cast<uint32_t>(position));
  sequences_.push_back(index);
  RowInfo row = sequence.request.routing;
  row.phase = phase;
  row.valid = true;
  rows_.push_back(row);
  wants_logits_.push_back(wants_logits ? 1 : 0);
}

void Engine::FormBatch() {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  rows_.clear();
  wants_logits_.clear();
  tables_.clear();
  has_prefill_ = false;
  size_t budget = options_.max_batch_tokens;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    tables_.push_back(&s.table);
    if (s.cached >= s.request.prompt.size() &&
        budget > 0) {  // feeds back the token it generated last
      AddRow(s, static_cast<uint32_t>(i), s.cached, RowPhase::kDecode, true);
      --budget;
    }
  }
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    const size_t prompt = s.request.prompt.size();
    if (s.cached >= prompt) continue;
    const size_t chunk = std::min(budget, prompt - s.cached);
    for (size_t k = 0; k < chunk; ++k) {
      const size_t position = s.cached + k;
      AddRow(s, static_cast<uint32_t>(i), position, RowPhase::kPrefill, position + 1 == prompt);
    }
    budget -= chunk;
    has_prefill_ = true;
  }
}

void Engine::ChoosePolicy() {
  if (options_.chooser == nullptr) return;
  const auto rows = std::count_if(running_.begin(), running_.end(),
                                  [](const auto& s) { return !s->output.empty(); });
  auto policy = options_.chooser->Choose(static_cast<size_t>(rows), decode_stats_);
  if (policy.get() == &router_->policy()) return;
  if (const Status status = SetPolicy(std::move(policy)); !status)
    LogWarning("the chosen policy cannot be used: {}", status.error().message);
}

bool Engine::Step() {
  ChoosePolicy();
  Admit();
  FormBatch();
  if (tokens_.empty()) return false;
  ArenaScope scope(arena_);
  const auto wanted =
      static_cast<size_t>(std::count(wants_logits_.begin(), wants_logits_.end(), uint8_t{1}));
  auto logits = arena_.Matrix<float>(wanted, model_->config().vocab_size);
  const StepBatch batch{tokens_, positions_, sequences_, rows_, wants_logits_, tables_};
  OpContext ops{*pool_, arena_, options_.activations};
  model_->Forward(batch, *kv_, *router_, ops, has_prefill_ ? prefill_stats_ : decode_stats_,
                  observer_, logits);
  size_t row = 0;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    Sequence& s = *running_[sequences_[t]];
    s.cached = positions_[t] + size_t{1};
    if (wants_logits_[t] != 0) Deliver(s, logits.RowSpan(row++));
  }
  std::erase_if(running_, [](const auto& s) { return s->done; });
  return true;
}

void Engine::Deliver(Sequence& s, std::span<float> logits) {
  std::copy(logits.begin(), logits.end(), raw_logits_.begin());
  const auto is_stop = [&](int32_t id) {
    const auto& eos = model_->config().eos_ids;
    return (!s.request.ignore_eos && std::find(eos.begin(), eos.end(), id) != eos.end()) ||
           std::find(s.request.stop_ids.begin(), s.request.stop_ids.end(), id) !=
               s.request.stop_ids.end();
  };
  if (s.output.size() < s.request.min_tokens) {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    if (!s.request.ignore_eos) {
      for (int32_t id : model_->config().eos_ids) logits[static_cast<size_t>(id)] = kNever;
    }
    for (int32_t id : s.request.stop_ids) logits[static_cast<size_t>(id)] = kNever;
  }
  const int32_t token =
      sampler_->Sample(logits, s.request.sampling, s.request.prompt, s.output, s.output.size());
  if (token < 0)
    return Finish(s, FinishReason::kError, -1, "the model's logits are not numbers", raw_logits_);
  s.output.push_back(token);
  if (is_stop(token)) return Finish(s, FinishReason::kStop, token, {}, raw_logits_);
  if (s.output.size() == s.request.max_tokens)
    return Finish(s, FinishReason::kLength, token, {}, raw_logits_);
  s.sink->OnToken({s.id, token, FinishReason::kNone, {}, raw_logits_});
}

void Engine::Finish(Sequence& s, FinishReason reason, int32_t token, std::string_view error,
                    std::span<const float> logits) {
  s.done = true;
  kv_->Release(s.table);
  s.sink->OnToken({s.id, token, reason, error, logits});
}

void Engine::ClearStats() {
  decode_stats_.Clear();
  prefill_stats_.Clear();
}

}  // namespace carpool
