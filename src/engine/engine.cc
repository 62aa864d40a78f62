#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "base/memory_info.h"
#include "routing/policy_spec.h"
#include "routing/trace.h"

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
  if (options.max_running == 0 || options.max_batch_tokens < options.max_running) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "wanted 1 <= running requests <= tokens of a batch, got {} and {}",
                     options.max_running, options.max_batch_tokens);
  }
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
  if (options.kv_bytes != 0) {
    kv_tokens = options.kv_bytes / (per_token * kPageTokens) * kPageTokens;
    if (kv_tokens == 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "KV memory: wanted at least one page of {} bytes, got {}",
                       per_token * kPageTokens, options.kv_bytes);
    }
  }
  if (kv_tokens == 0) {
    kv_tokens = std::min(options.max_running * e->context_,
                         std::max(kDefaultKvBytes / per_token, e->context_));
  }
  e->kv_ = std::make_unique<KvCache>(e->model_->kv_layout(), DivCeil(kv_tokens, kPageTokens));
  if (options.commit_kv) {
    if (const size_t available = AvailableMemory(); e->kv_->bytes() > available) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "KV cache: {} tokens need {:.2f} GB, {:.2f} GB are available; give a smaller "
          "--kv-memory, --ctx-size or --max-running-requests",
          e->kv_->num_pages() * kPageTokens, static_cast<double>(e->kv_->bytes()) * 1e-9,
          static_cast<double>(available) * 1e-9);
    }
    e->kv_->Commit();
  }
  if (options.prefix_cache) e->prefix_ = std::make_unique<PrefixCache>(*e->kv_);
  e->recorder_ = std::make_unique<RoutingRecorder>(config.NumMoeLayers(), config.gate.num_experts,
                                                   options.max_batch_tokens);
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
  e->captured_.reserve(max_rows);
  e->bad_layers_.resize(max_rows);
  e->tables_.reserve(options.max_running);
  e->running_.reserve(options.max_running);
  return e;
}

Status Engine::SetPolicy(std::shared_ptr<const PolicySpec> policy) {
  if (policy == nullptr) {
    ASSIGN_OR_RETURN(policy, ParsePolicy("vanilla"));
  }
  const ModelConfig& config = model_->config();
  const bool vanilla = policy->kind->name == "vanilla";
  ASSIGN_OR_RETURN(router_, Router::Make(config.gate, std::move(policy), config.NumMoeLayers(),
                                         options_.max_batch_tokens));
  router_->set_trace(trace_, trace_detail_);
  vanilla_ = vanilla;
  ++policy_tag_;
  return {};
}

void Engine::set_trace(TraceSink* sink, TraceDetail detail) {
  trace_ = sink;
  trace_detail_ = detail;
  router_->set_trace(sink, detail);
}

Status Engine::Validate(const Request& request) const {
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
  if (request.max_tokens == 0 && !request.prompt_logits)
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
  if (request.min_tokens > request.max_tokens) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "min_tokens: wanted at most max_tokens {}, got {}", request.max_tokens,
                     request.min_tokens);
  }
  for (int32_t id : request.stop_ids) {
    if (id < 0 || static_cast<size_t>(id) >= vocab) {
      return MakeError(ErrorCode::kInvalidArgument, "stop_token_ids: token id {} is not in [0, {})",
                       id, vocab);
    }
  }
  return ValidateSampling(request.sampling, vocab);
}

Result<uint64_t> Engine::Submit(Request request, TokenSink* sink) {
  RETURN_IF_ERROR(Validate(request));
  if (waiting_.size() >= options_.max_waiting) {
    return MakeError(ErrorCode::kExhausted, "the queue is full: {} requests wait; try again later",
                     waiting_.size());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id != 0 ? request.id : next_id_++;
  sequence->request = std::move(request);
  sequence->sink = sink;
  sequence->submitted = Sequence::Clock::now();
  const Request& r = sequence->request;
  sequence->one_policy = r.routing.k0 == 0 && r.routing.kmax == 0 && std::isnan(r.routing.p);
  sequence->output.reserve(r.max_tokens);
  sequence->table.pages.reserve(DivCeil(r.prompt.size() + r.max_tokens, kPageTokens));
  const uint64_t id = sequence->id;
  const auto place = std::upper_bound(
      waiting_.begin(), waiting_.end(), r.priority,
      [](int32_t priority, const auto& w) { return priority < w->request.priority; });
  waiting_.insert(place, std::move(sequence));
  return id;
}

void Engine::Cancel(uint64_t request_id) {
  for (auto& s : running_) {
    if (s->id == request_id && !s->done) Finish(*s, FinishReason::kCancelled, -1, {}, {});
  }
  std::erase_if(running_, [](const auto& s) { return s->done; });
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if ((*it)->id != request_id) continue;
    Finish(**it, FinishReason::kCancelled, -1, {}, {});
    waiting_.erase(it);
    return;
  }
}

double Engine::oldest_wait_seconds() const {
  double oldest = 0.0;
  const auto now = Sequence::Clock::now();
  for (const auto& s : waiting_) {
    oldest = std::max(oldest, std::chrono::duration<double>(now - s->submitted).count());
  }
  return oldest;
}

PageAccount Engine::AccountPages() const {
  PageAccount account;
  account.total = kv_->num_pages();
  account.free = kv_->free_pages();
  std::vector<uint8_t> seen(account.total, 0);
  if (prefix_ != nullptr) prefix_->MarkPages(seen);
  account.cached = static_cast<size_t>(std::count(seen.begin(), seen.end(), uint8_t{1}));
  for (const auto& s : running_) {
    for (uint32_t page : s->table.pages) {
      account.running += seen[page] == 0;
      seen[page] = 1;
    }
  }
  account.leaked = account.total - account.free - account.cached - account.running;
  return account;
}

void Engine::ChoosePolicy() {
  if (options_.chooser == nullptr) return;
  const auto rows = std::count_if(running_.begin(), running_.end(),
                                  [](const auto& s) { return !s->output.empty(); });
  if (rows == 0) return;  // prompts only: policies have nothing to act on
  auto policy = options_.chooser->Choose(static_cast<size_t>(rows), decode_stats_);
  if (policy.get() == &router_->policy()) return;
  if (const Status status = SetPolicy(std::move(policy)); !status)
    LogWarning("the chosen policy cannot be used: {}", status.error().message);
}

void Engine::TraceBatch() {
  if (trace_ == nullptr || trace_detail_.level < 2) return;
  std::string line = "{\"record\":\"batch\",\"requests\":[";
  for (size_t t = 0; t < tokens_.size(); ++t)
    line += fmt::format("{}{}", t == 0 ? "" : ",", running_[sequences_[t]]->id);
  trace_->Line(line + "]}");
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
  const StepBatch batch{tokens_,
                        positions_,
                        sequences_,
                        rows_,
                        wants_logits_,
                        tables_,
                        std::span(bad_layers_).first(tokens_.size())};
  OpContext ops{*pool_, arena_, options_.activations};
  recorder_->Begin(tokens_.size(), captured_);
  TraceBatch();
  StepStats& stats = has_prefill_ ? prefill_stats_ : decode_stats_;
  step_before_ = stats;
  model_->Forward(batch, *kv_, *router_, ops, stats, recorder_.get(), logits);
  TakeStepReport(step_before_, stats);
  size_t row = 0;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    Sequence& s = *running_[sequences_[t]];
    const bool has_logits = wants_logits_[t] != 0;
    if (!s.done) {
      AfterRow(s, t);
      if (bad_layers_[t] != kFinite) {
        Finish(s, FinishReason::kError, -1, NotANumber(t), {});
      } else if (has_logits) {
        Deliver(s, t, logits.RowSpan(row));
      }
    }
    row += has_logits;
  }
  std::erase_if(running_, [](const auto& s) { return s->done; });
  return true;
}

void Engine::AfterRow(Sequence& s, size_t row) {
  const size_t position = positions_[row];
  const bool decode = rows_[row].phase == RowPhase::kDecode;
  const bool exact = !decode || IsExact(s);
  if (exact && s.exact_tokens == position) s.exact_tokens = position + 1;
  s.one_policy &= exact || s.policy_tag == policy_tag_;
  s.cached = position + 1;
  RequestReport& report = s.report;
  if (s.request.record_experts) {
    const auto ids = recorder_->captured_row(row);
    const size_t width = recorder_->captured_width();
    if (report.expert_width == 0) report.expert_width = width;
    for (size_t layer = 0; layer < recorder_->layers(); ++layer) {
      for (size_t k = 0; k < report.expert_width; ++k) {
        report.experts.push_back(k < width ? ids[layer * width + k] : -1);
      }
    }
  }
  if (!decode) return;
  report.moe.layer_rows += recorder_->layers();
  report.moe.distinct_sum += recorder_->distinct_total();
  report.moe.assignments += recorder_->row_assignments(row);
  report.moe.piggybacks += recorder_->row_piggybacks(row);
  report.moe.expert_bytes +=
      static_cast<double>(last_step_.expert_bytes) / static_cast<double>(tokens_.size());
  report.moe.batch_dependent |= !exact && router_->batch_coupled();
}

void Engine::TakeStepReport(const StepStats& before, const StepStats& after) {
  StepReport& r = last_step_;
  r.rows = tokens_.size();
  r.decode_rows = decode_rows_;
  r.total_ns = after.total_ns - before.total_ns;
  r.attention_ns = after.attention_ns - before.attention_ns;
  r.router_ns = after.router_ns - before.router_ns;
  r.experts_ns = after.experts_ns - before.experts_ns;
  r.dense_ns = after.dense_ns - before.dense_ns;
  r.head_ns = after.head_ns - before.head_ns;
  r.expert_bytes = after.expert_bytes - before.expert_bytes;
  const auto sum = [](const StepStats& stats, uint64_t RoutingStats::*field) {
    uint64_t total = 0;
    for (const RoutingStats& layer : stats.moe) total += layer.*field;
    return total;
  };
  r.assignments = sum(after, &RoutingStats::assignments) - sum(before, &RoutingStats::assignments);
  r.piggybacks = sum(after, &RoutingStats::piggybacks) - sum(before, &RoutingStats::piggybacks);
  r.dropped = sum(after, &RoutingStats::dropped) - sum(before, &RoutingStats::dropped);
}

std::string Engine::NotANumber(size_t row) const {
  const int32_t where = bad_layers_[row];
  std::string place = fmt::format("layer {}", where);
  if (where == kFinite) place = "the sampler";  // e.g. every token forbidden
  if (where == kBadEmbedding) place = "the embedding";
  if (where == kBadHead) place = "the output head";
  return fmt::format(
      "the model computed values that are not numbers (first in {}, at position {}); the request "
      "was ended, others go on",
      place, positions_[row]);
}

void Engine::Deliver(Sequence& s, size_t row, std::span<float> logits) {
  const size_t position = positions_[row];
  if (position + 1 < s.request.prompt.size()) return s.sink->OnPromptLogits(s.id, position, logits);
  if (s.output.empty()) {
    s.first_token = Sequence::Clock::now();
    Remember(s);
    if (s.request.max_tokens == 0) return Finish(s, FinishReason::kLength, -1, {}, logits);
  }
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
  if (token < 0) return Finish(s, FinishReason::kError, -1, NotANumber(row), raw_logits_);
  s.output.push_back(token);
  if (is_stop(token)) return Finish(s, FinishReason::kStop, token, {}, raw_logits_);
  if (s.output.size() == s.request.max_tokens)
    return Finish(s, FinishReason::kLength, token, {}, raw_logits_);
  s.sink->OnToken({s.id, token, FinishReason::kNone, {}, raw_logits_});
}

void Engine::Finish(Sequence& s, FinishReason reason, int32_t token, std::string_view error,
                    std::span<const float> logits) {
  s.done = true;
  if (reason != FinishReason::kError) Remember(s);
  kv_->Release(s.table);
  FillReport(s);
  s.sink->OnToken({s.id, token, reason, error, logits, &s.report});
}

void Engine::FillReport(Sequence& s) {
  const auto now = Sequence::Clock::now();
  const auto seconds = [](auto from, auto to) {
    return std::max(0.0, std::chrono::duration<double>(to - from).count());
  };
  RequestReport& r = s.report;
  const bool admitted = s.admitted != Sequence::Clock::time_point();
  const bool started = s.first_token != Sequence::Clock::time_point();
  r.prompt_tokens = s.request.prompt.size();
  r.output_tokens = s.output.size();
  r.queue_seconds = seconds(s.submitted, admitted ? s.admitted : now);
  if (admitted) r.prefill_seconds = seconds(s.admitted, started ? s.first_token : now);
  if (started) r.decode_seconds = seconds(s.first_token, now);
  r.routing = s.request.routing.exact ? "vanilla" : PolicyText(router_->policy());
}

void Engine::ClearStats() {
  decode_stats_.Clear();
  prefill_stats_.Clear();
  recorder_->ClearTotals();
}

}  // namespace carpool
