#include "lab/lockstep.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace carpool {
namespace {

constexpr size_t kPrefillRows = 256;

}  // namespace

Lockstep::Lockstep(const Model& model, ThreadPool& pool, Router& router, Activations activations,
                   size_t batch, size_t max_tokens)
    : model_(model),
      pool_(pool),
      router_(&router),
      activations_(activations),
      batch_(batch),
      max_tokens_(max_tokens),
      kv_(model.kv_layout(), batch * DivCeil(max_tokens, kPageTokens)),
      tables_(batch),
      rows_(batch),
      wants_(batch, 1),
      positions_(batch),
      sequences_(batch),
      logits_(batch * model.config().vocab_size) {
  for (auto& t : tables_) {
    t.pages.reserve(DivCeil(max_tokens, kPageTokens));
    table_pointers_.push_back(&t);
  }
  std::iota(sequences_.begin(), sequences_.end(), 0u);
}

Lockstep::~Lockstep() { Reset(); }

void Lockstep::Reset() {
  for (auto& t : tables_) kv_.Release(t);
  position_ = 0;
}

void Lockstep::Forward(std::span<const int32_t> tokens, std::span<const uint32_t> positions,
                       std::span<const uint32_t> sequences, RowPhase phase, bool wants_logits) {
  rows_.assign(tokens.size(), RowInfo{.phase = phase});
  wants_.assign(tokens.size(), wants_logits ? 1 : 0);
  const size_t vocab = model_.config().vocab_size;
  const MatView<float> logits(logits_.data(), wants_logits ? tokens.size() : 0, vocab);
  const StepBatch batch{tokens, positions, sequences, rows_, wants_, table_pointers_};
  OpContext ops{pool_, arena_, activations_};
  model_.Forward(batch, kv_, *router_, ops, stats_, observer_, logits);
}

MatView<const float> Lockstep::Step(std::span<const int32_t> tokens) {
  CARPOOL_CHECK_EQ(tokens.size(), batch_);
  CARPOOL_CHECK_LT(position_, max_tokens_);
  for (auto& t : tables_) CARPOOL_CHECK(kv_.Grow(t, position_ + 1));
  std::fill(positions_.begin(), positions_.end(), static_cast<uint32_t>(position_));
  Forward(tokens, positions_, sequences_, RowPhase::kDecode, true);
  ++position_;
  return {logits_.data(), batch_, model_.config().vocab_size};
}

void Lockstep::Prefill(MatView<const int32_t> prompts) {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> positions, sequences;
  const auto flush = [&] {
    if (!tokens.empty()) Forward(tokens, positions, sequences, RowPhase::kPrefill, false);
    tokens.clear();
    positions.clear();
    sequences.clear();
  };
  for (size_t b = 0; b < batch_; ++b) {
    CARPOOL_CHECK(kv_.Grow(tables_[b], position_ + prompts.cols));
    for (size_t i = 0; i < prompts.cols; ++i) {
      if (tokens.size() == std::max(kPrefillRows, batch_)) flush();
      tokens.push_back(prompts.Row(b)[i]);
      positions.push_back(static_cast<uint32_t>(position_ + i));
      sequences.push_back(static_cast<uint32_t>(b));
    }
  }
  flush();
  position_ += prompts.cols;
}

MatView<const float> Lockstep::PrefillForLogits(std::span<const int32_t> prompt) {
  CARPOOL_CHECK_EQ(batch_, size_t{1});
  CARPOOL_CHECK(!prompt.empty() && kv_.Grow(tables_[0], position_ + prompt.size()));
  std::vector<uint32_t> positions(prompt.size());
  std::iota(positions.begin(), positions.end(), static_cast<uint32_t>(position_));
  const std::vector<uint32_t> sequences(prompt.size(), 0);
  rows_.assign(prompt.size(), RowInfo{.phase = RowPhase::kPrefill});
  wants_.assign(prompt.size(), 0);
  wants_.back() = 1;
  const size_t vocab = model_.config().vocab_size;
  const StepBatch batch{prompt, positions, sequences, rows_, wants_, table_pointers_};
  OpContext ops{pool_, arena_, activations_};
  model_.Forward(batch, kv_, *router_, ops, stats_, observer_, {logits_.data(), 1, vocab});
  position_ += prompt.size();
  return {logits_.data(), 1, vocab};
}

void Lockstep::PretendPrefill(size_t tokens, uint64_t seed) {
  CARPOOL_CHECK(tokens <= max_tokens_);
  for (auto& t : tables_) CARPOOL_CHECK(kv_.Grow(t, tokens));
  const KvLayout& layout = kv_.layout();
  const size_t pages = DivCeil(tokens, kPageTokens);
  pool_.ParallelFor(batch_ * pages, [&](size_t task, size_t) {
    const PageTable& table = tables_[task / pages];
    const size_t first = task % pages * kPageTokens;
    uint64_t state = seed + task * 0x9E3779B97F4A7C15ull;
    const auto fill = [&state](float* out, size_t n) {
      for (size_t i = 0; i < n; ++i) {  // uniform, variance 1, as normed latents have it
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        out[i] = (static_cast<float>(state >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
      }
    };
    for (size_t layer = 0; layer < layout.entry_width.size(); ++layer) {
      fill(kv_.Entry(layer, table, first), layout.entry_width[layer] * kPageTokens);
      if (layout.index_dim[layer] > 0)
        fill(kv_.IndexPage(layer, table, first), layout.index_dim[layer] * kPageTokens);
    }
  });
  position_ = tokens;
}

void Lockstep::Rewind(size_t tokens) {
  CARPOOL_CHECK(tokens <= position_);
  position_ = tokens;
}

double CrossEntropy(std::span<const float> logits, int32_t target) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float l : logits) sum += std::exp(l - max);
  return std::log(sum) + static_cast<double>(max) -
         static_cast<double>(logits[static_cast<size_t>(target)]);
}

}  // namespace carpool
