// Who runs next: admission, and the rows of a step.
#include <algorithm>

#include "base/aligned.h"
#include "engine/engine.h"

namespace carpool {
namespace {

// While sequences decode, a step takes at most this many prompt rows per decode row (and never
// fewer than kPrefillFloor), so that a long prompt stretches the others' token times by a small
// factor only.
constexpr size_t kPrefillRowsPerDecodeRow = 2;
constexpr size_t kPrefillFloor = 32;
// Prompt rows per step whose logits are wanted: bounds the logits matrix.
constexpr size_t kPromptLogitRows = 64;

}  // namespace

bool Engine::IsExact(const Sequence& s) const { return vanilla_ || s.request.routing.exact; }

void Engine::Admit() {
  // By priority, then first come, first served; a request is admitted when its whole length fits,
  // so that it can never starve midway. Later requests do not overtake one that waits for room.
  while (!waiting_.empty() && running_.size() < options_.max_running) {
    Sequence& next = *waiting_.front();
    const size_t length = next.request.prompt.size() + next.request.max_tokens;
    PrefixCache::Match match;
    if (prefix_ != nullptr && !next.needs_every_row()) {
      // The last prompt token always runs: its logits give the first output token.
      const auto usable = std::span(next.request.prompt).first(next.request.prompt.size() - 1);
      match =
          prefix_->Take(usable, IsExact(next) ? PrefixCache::kExactTag : policy_tag_, next.table);
    }
    if (!kv_->Grow(next.table, length)) {
      const size_t missing = DivCeil(length, kPageTokens) - next.table.pages.size();
      const bool room = prefix_ != nullptr && prefix_->MakeRoom(missing);
      if (!room || !kv_->Grow(next.table, length)) {
        kv_->Release(next.table);
        return;
      }
    }
    if (prefix_ != nullptr) {
      prefix_queries_ += next.request.prompt.size();
      prefix_hits_ += match.tokens;
    }
    next.cached = next.report.cached_tokens = match.tokens;
    next.exact_tokens = match.exact_tokens;
    next.policy_tag = policy_tag_;
    next.admitted = Sequence::Clock::now();
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
  captured_.push_back(sequence.request.record_experts ? 1 : 0);
  decode_rows_ += phase == RowPhase::kDecode;
}

void Engine::FormBatch() {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  rows_.clear();
  wants_logits_.clear();
  captured_.clear();
  tables_.clear();
  has_prefill_ = false;
  decode_rows_ = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    tables_.push_back(&s.table);
    if (!s.prefilling()) {  // feeds back the token it generated last
      AddRow(s, static_cast<uint32_t>(i), s.cached, RowPhase::kDecode, true);
    }
  }
  size_t budget = options_.max_batch_tokens - tokens_.size();
  if (decode_rows_ > 0) {
    if (++decode_steps_in_a_row_ < options_.continuous_decode_steps) return;
    budget = std::min(budget, std::max(kPrefillFloor, kPrefillRowsPerDecodeRow * decode_rows_));
  }
  decode_steps_in_a_row_ = 0;
  AddPrefill(budget);
}

void Engine::AddPrefill(size_t budget) {
  // Equal shares, short prompts' leftovers to the others; whose turn is first moves on every step.
  size_t open = static_cast<size_t>(std::count_if(running_.begin(), running_.end(),
                                                  [](const auto& s) { return s->prefilling(); }));
  if (open == 0) return;
  ++prefill_turn_;
  size_t logit_rows = 0;
  for (size_t n = 0; n < running_.size() && budget > 0; ++n) {
    const size_t i = (n + prefill_turn_) % running_.size();
    Sequence& s = *running_[i];
    if (!s.prefilling()) continue;
    const size_t prompt = s.request.prompt.size();
    const size_t share = std::max<size_t>(DivCeil(budget, open--), std::min(budget, kPageTokens));
    size_t chunk = std::min(share, prompt - s.cached);
    if (s.request.prompt_logits) {
      chunk = std::min(chunk, kPromptLogitRows - logit_rows);
      logit_rows += chunk;
    }
    const RowPhase phase = s.request.score_as_decode ? RowPhase::kDecode : RowPhase::kPrefill;
    for (size_t k = 0; k < chunk; ++k) {
      const size_t position = s.cached + k;
      AddRow(s, static_cast<uint32_t>(i), position, phase,
             s.request.prompt_logits || position + 1 == prompt);
    }
    budget -= chunk;
    has_prefill_ |= chunk > 0 && phase == RowPhase::kPrefill;
  }
}

void Engine::Remember(Sequence& s) {
  if (prefix_ == nullptr) return;
  const size_t tokens = s.one_policy ? s.cached : s.exact_tokens;
  std::vector<uint32_t> tags;
  for (size_t page = 0; page < tokens / kPageTokens; ++page) {
    const bool exact = (page + 1) * kPageTokens <= s.exact_tokens;
    tags.push_back(exact ? PrefixCache::kExactTag : s.policy_tag);
  }
  std::vector<int32_t> ids(s.request.prompt.begin(), s.request.prompt.end());
  ids.insert(ids.end(), s.output.begin(), s.output.end());
  prefix_->Insert(ids, tags, s.table);
}

}  // namespace carpool
