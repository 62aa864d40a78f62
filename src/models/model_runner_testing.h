// Test support: runs a model step by step, without an engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "models/model.h"

namespace carpool::testing {

/// Everything one run of the model over some rows leaves behind.
struct Trace : RoutingObserver {
  std::map<size_t, std::vector<std::map<int, float>>>
      experts;  // moe layer -> row -> expert -> weight
  std::map<size_t, std::map<size_t, std::set<uint32_t>>> selected_keys;  // layer -> row -> keys
  void OnRouted(size_t moe_layer, const RoutedStep& routed) override {
    for (size_t r = 0; r < routed.ids.rows; ++r) {
      std::map<int, float> row;
      for (size_t s = 0; s < static_cast<size_t>(routed.counts[r]); ++s)
        row[routed.ids.Row(r)[s]] = routed.weights.Row(r)[s];
      experts[moe_layer].push_back(row);
    }
  }
  void OnSelectedKeys(size_t layer, size_t row, std::span<const uint32_t> positions) override {
    selected_keys[layer][row] = {positions.begin(), positions.end()};
  }
};

/// A model, its cache and a router; every row wants its logits.
class Runner {
 public:
  explicit Runner(const std::string& dir, size_t threads = 1, const char* policy = "vanilla")
      : pool_(threads) {
    auto model = Model::Load(dir, pool_);
    EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message);
    model_ = std::move(*model);
    auto spec = ParsePolicy(policy);
    auto router = Router::Make(model_->config().gate, *spec, model_->config().NumMoeLayers(), 128);
    EXPECT_TRUE(router.has_value());
    router_ = std::move(*router);
    kv_ = std::make_unique<KvCache>(model_->kv_layout(), 256);
    arena_.set_poison(true);
  }
  ~Runner() {
    for (auto& t : tables_) kv_->Release(t);
  }

  /// Feeds rows (sequence, position, token), all of them wanting logits.
  struct RowSpec {
    uint32_t sequence;
    uint32_t position;
    int32_t token;
    RowPhase phase = RowPhase::kPrefill;
  };
  std::vector<float> Step(const std::vector<RowSpec>& specs) {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> positions, sequences;
    std::vector<RowInfo> rows;
    std::vector<uint8_t> wants(specs.size(), 1);
    for (const auto& s : specs) {
      if (tables_.size() <= s.sequence) tables_.resize(s.sequence + 1);
      EXPECT_TRUE(kv_->Grow(tables_[s.sequence], s.position + 1));
      tokens.push_back(s.token);
      positions.push_back(s.position);
      sequences.push_back(s.sequence);
      rows.push_back({.phase = s.phase});
    }
    std::vector<const PageTable*> tables;
    for (const auto& t : tables_) tables.push_back(&t);
    std::vector<float> logits(specs.size() * vocab());
    OpContext ops{pool_, arena_, Activations::kF32};
    const StepBatch batch{tokens, positions, sequences, rows, wants, tables};
    model_->Forward(batch, *kv_, *router_, ops, stats_, observer_,
                    {logits.data(), specs.size(), vocab()});
    return logits;
  }
  std::vector<float> Prefill(const std::vector<int32_t>& ids, size_t chunk) {
    std::vector<float> all;
    for (size_t i = 0; i < ids.size(); i += chunk) {
      std::vector<RowSpec> specs;
      for (size_t k = i; k < std::min(ids.size(), i + chunk); ++k)
        specs.push_back({0, static_cast<uint32_t>(k), ids[k]});
      const auto logits = Step(specs);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  size_t vocab() const { return model_->config().vocab_size; }
  const ModelConfig& config() const { return model_->config(); }
  void set_observer(RoutingObserver* o) { observer_ = o; }
  const StepStats& stats() const { return stats_; }

 private:
  ThreadPool pool_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<KvCache> kv_;
  std::vector<PageTable> tables_;
  Arena arena_;
  StepStats stats_;
  RoutingObserver* observer_ = nullptr;
};

}  // namespace carpool::testing
