#include "routing/router.h"

#include <algorithm>

#include "base/aligned.h"
#include "base/check.h"
#include "routing/gate_math.h"
#include "routing/policy.h"
#include "routing/policy_spec.h"
#include "routing/rank.h"
#include "routing/routing_plan.h"
#include "routing/trace.h"

namespace carpool {
namespace {

/// [rows, cols] of owned memory.
template <typename T>
struct Matrix {
  Matrix(size_t rows, size_t columns) : cols(columns), data(rows * columns) {}
  T* Row(size_t r) { return data.data() + r * cols; }
  MatView<T> View(size_t rows) { return MatView<T>(data.data(), rows, cols); }
  size_t cols;
  AlignedBuffer<T> data;
};

void SortById(int32_t* ids, SlotReason* reasons, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    for (size_t j = i; j > 0 && ids[j - 1] > ids[j]; --j) {
      std::swap(ids[j - 1], ids[j]);
      std::swap(reasons[j - 1], reasons[j]);
    }
  }
}

class RouterImpl final : public Router {
 public:
  RouterImpl(const GateSpec& gate, std::shared_ptr<const PolicySpec> spec,
             std::unique_ptr<RoutingPolicy> policy, size_t layers, size_t max_rows)
      : gate_(gate),
        spec_(std::move(spec)),
        policy_(std::move(policy)),
        layers_(layers),
        max_rows_(max_rows),
        max_set_(std::max(policy_->max_set(), gate.top_k)),
        logits_(max_rows, Padded()),
        scores_(max_rows, Padded()),
        choices_(max_rows, Padded()),
        keys_(max_rows, Padded()),
        vanilla_(max_rows, gate.top_k),
        ids_(max_rows, max_set_ + gate.fused_shared),
        weights_(max_rows, max_set_ + gate.fused_shared),
        reasons_(max_rows, max_set_),
        counts_(max_rows),
        active_(max_rows),
        fixed_(max_rows),
        dropped_(Padded()),
        seen_(Padded()),
        plan_(max_rows, max_set_ + gate.fused_shared, gate.num_experts + gate.fused_shared) {}

  RoutedStep Route(size_t moe_layer, std::span<const RowInfo> rows, MatView<const float> logits,
                   std::span<const float> bias) override;

  const GateSpec& gate() const override { return gate_; }
  const PolicySpec& policy() const override { return *spec_; }
  bool batch_coupled() const override { return spec_->kind->batch_coupled; }
  void set_trace(TraceSink* sink, TraceDetail detail) override {
    tracer_ = sink == nullptr ? nullptr : std::make_unique<Tracer>(*sink, detail);
    if (tracer_ != nullptr) tracer_->Config(gate_, *spec_);
  }

 private:
  size_t Padded() const { return RoundUp(gate_.num_experts, kRowBlock); }
  RowScores Scores(size_t r) {
    return {logits_.Row(r), scores_.Row(r), choices_.Row(r), keys_.Row(r), dropped_.data()};
  }
  void ForbidDropped(size_t r);
  void ScoreAndPreset(std::span<const RowInfo> rows, MatView<const float> logits,
                      std::span<const float> bias);
  void Select(size_t layer, std::span<const RowInfo> rows);
  void Weigh(std::span<const RowInfo> rows);
  void CountChanges(RoutingStats& stats);
  void Trace(size_t layer, std::span<const RowInfo> rows, MatView<const float> logits,
             std::span<const float> bias, const RoutedStep& step);

  GateSpec gate_;
  std::shared_ptr<const PolicySpec> spec_;
  std::unique_ptr<RoutingPolicy> policy_;
  size_t layers_;
  size_t max_rows_;
  size_t max_set_;
  Matrix<float> logits_;
  Matrix<float> scores_;
  Matrix<float> choices_;
  Matrix<uint32_t> keys_;
  Matrix<int32_t> vanilla_;
  Matrix<int32_t> ids_;
  Matrix<float> weights_;
  Matrix<SlotReason> reasons_;
  std::vector<int32_t> counts_;
  std::vector<uint32_t> active_;
  std::vector<uint32_t> fixed_;
  size_t num_active_ = 0;
  size_t num_fixed_ = 0;
  size_t decode_rows_ = 0;
  std::vector<uint8_t> dropped_;  // [padded N] of the row being scored
  std::vector<uint8_t> seen_;     // [padded N] scratch of CountChanges, all zero between uses
  RoutingPlan plan_;
  std::unique_ptr<Tracer> tracer_;  // null: not tracing
  uint64_t step_ = 0;               // counts passes over the layers, for the trace
  size_t last_layer_ = 0;
  bool routed_before_ = false;
};

void RouterImpl::ScoreAndPreset(std::span<const RowInfo> rows, MatView<const float> logits,
                                std::span<const float> bias) {
  num_active_ = num_fixed_ = decode_rows_ = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    int32_t* ids = ids_.Row(r);
    std::fill(ids, ids + ids_.cols, -1);
    if (!rows[r].valid) {
      counts_[r] = 0;
      continue;
    }
    const bool decode = rows[r].phase == RowPhase::kDecode;
    decode_rows_ += decode;
    if (decode && !rows[r].exact) {
      active_[num_active_++] = static_cast<uint32_t>(r);
    } else {
      fixed_[num_fixed_++] = static_cast<uint32_t>(r);
    }
    ScoreRow(gate_, logits.Row(r), bias.empty() ? nullptr : bias.data(), Scores(r));
    int32_t* vanilla = vanilla_.Row(r);
    [[maybe_unused]] const size_t found =
        TopK(keys_.Row(r), nullptr, keys_.cols, gate_.top_k, vanilla);
    CARPOOL_DCHECK(found == gate_.top_k);
    if (gate_.group_mask == GroupMask::kZero) ForbidDropped(r);
    std::copy(vanilla, vanilla + gate_.top_k, ids);
    std::fill(reasons_.Row(r), reasons_.Row(r) + max_set_, SlotReason::kOwn);
    counts_[r] = static_cast<int32_t>(gate_.top_k);
  }
}

/// With mask 0 a dropped expert can still win a place in the vanilla choice, which is the defect
/// that mask reproduces. Beyond that no policy may take an expert of a dropped group.
void RouterImpl::ForbidDropped(size_t r) {
  uint32_t* keys = keys_.Row(r);
  const int32_t* vanilla = vanilla_.Row(r);
  for (size_t e = 0; e < gate_.num_experts; ++e) {
    const auto id = static_cast<int32_t>(e);
    if (dropped_[e] != 0 &&
        std::find(vanilla, vanilla + gate_.top_k, id) == vanilla + gate_.top_k) {
      keys[e] = kIneligibleKey;
    }
  }
}

void RouterImpl::Select(size_t layer, std::span<const RowInfo> rows) {
  if (num_active_ == 0 || decode_rows_ < spec_->min_rows) return;
  PolicyInput in;
  in.layer = layer;
  in.rows = rows;
  in.active = {active_.data(), num_active_};
  if (spec_->ride) in.fixed = {fixed_.data(), num_fixed_};
  in.keys = keys_.View(rows.size());
  in.scores = scores_.View(rows.size());
  in.choices = choices_.View(rows.size());
  in.vanilla = vanilla_.View(rows.size());
  const PolicyOutput out{
      ids_.View(rows.size()), reasons_.View(rows.size()), {counts_.data(), rows.size()}};
  policy_->Select(in, out);
}

void RouterImpl::Weigh(std::span<const RowInfo> rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    int32_t* ids = ids_.Row(r);
    float* weights = weights_.Row(r);
    std::fill(weights, weights + weights_.cols, 0.0f);
    if (!rows[r].valid) continue;
    const auto count = static_cast<size_t>(counts_[r]);
    if (gate_.slot_order == SlotOrder::kExpertId) SortById(ids, reasons_.Row(r), count);
    float mass = 0;
    if (spec_->keep_mass && gate_.renormalize == Renormalize::kNone) {
      mass = RowMass(gate_, Scores(r), vanilla_.Row(r), gate_.top_k);
    }
    WeighRow(gate_, Scores(r), ids, count, mass, weights);
    for (size_t s = 0; s < gate_.fused_shared; ++s) {
      ids[count + s] = static_cast<int32_t>(gate_.num_experts + s);
    }
    std::fill(ids + count + gate_.fused_shared, ids + ids_.cols, -1);
    counts_[r] += static_cast<int32_t>(gate_.fused_shared);
  }
}

void RouterImpl::CountChanges(RoutingStats& stats) {
  for (size_t i = 0; i < num_active_; ++i) {
    const size_t r = active_[i];
    const int32_t* ids = ids_.Row(r);
    const int32_t* vanilla = vanilla_.Row(r);
    const size_t count = static_cast<size_t>(counts_[r]) - gate_.fused_shared;
    for (size_t s = 0; s < count; ++s) {
      seen_[static_cast<size_t>(ids[s])] = 1;
      stats.piggybacks += reasons_.Row(r)[s] == SlotReason::kPiggyback;
    }
    size_t kept = 0;
    for (size_t s = 0; s < gate_.top_k; ++s) kept += seen_[static_cast<size_t>(vanilla[s])];
    for (size_t s = 0; s < count; ++s) seen_[static_cast<size_t>(ids[s])] = 0;
    stats.dropped += gate_.top_k - kept;
    stats.changed_rows += kept != gate_.top_k || count != gate_.top_k;
  }
}

void RouterImpl::Trace(size_t layer, std::span<const RowInfo> rows, MatView<const float> logits,
                       std::span<const float> bias, const RoutedStep& step) {
  TraceCall call;
  call.gate = &gate_;
  call.policy = spec_.get();
  if (layer <= last_layer_ && routed_before_) ++step_;
  routed_before_ = true;
  last_layer_ = layer;
  call.step = step_;
  call.layer = layer;
  call.rows = rows;
  call.logits = logits;
  call.bias = bias;
  call.keys = keys_.View(rows.size());
  call.scores = scores_.View(rows.size());
  call.choices = choices_.View(rows.size());
  call.vanilla = vanilla_.View(rows.size());
  call.ids = step.ids;
  call.weights = step.weights;
  call.reasons = step.reasons;
  call.counts = step.counts;
  call.stats = &step.stats;
  tracer_->Call(call);
}

RoutedStep RouterImpl::Route(size_t moe_layer, std::span<const RowInfo> rows,
                             MatView<const float> logits, std::span<const float> bias) {
  CARPOOL_CHECK_LT(moe_layer, layers_);
  CARPOOL_CHECK_LE(rows.size(), max_rows_);
  CARPOOL_CHECK_EQ(rows.size(), logits.rows);
  CARPOOL_CHECK_EQ(logits.cols, gate_.num_experts);
  CARPOOL_CHECK_EQ(bias.size(), gate_.has_bias ? gate_.num_experts : 0);
  ScoreAndPreset(rows, logits, bias);
  Select(moe_layer, rows);
  Weigh(rows);
  RoutedStep step;
  step.ids = ids_.View(rows.size());
  step.weights = weights_.View(rows.size());
  step.counts = {counts_.data(), rows.size()};
  step.reasons = reasons_.View(rows.size());
  step.plan = plan_.Build(step.ids, step.weights, step.counts);
  step.stats.rows = num_active_ + num_fixed_;
  step.stats.decode_rows = decode_rows_;
  step.stats.assignments = step.plan.row_of_slot.size() - step.stats.rows * gate_.fused_shared;
  step.stats.distinct_experts =
      step.plan.experts.size() - (step.stats.rows > 0 ? gate_.fused_shared : 0);
  CountChanges(step.stats);
  if (tracer_ != nullptr) Trace(moe_layer, rows, logits, bias, step);
  return step;
}

}  // namespace

std::string_view ReasonName(SlotReason reason) {
  return reason == SlotReason::kOwn ? "own" : "piggyback";
}

Result<std::unique_ptr<Router>> Router::Make(const GateSpec& gate,
                                             std::shared_ptr<const PolicySpec> policy,
                                             size_t moe_layers, size_t max_rows) {
  RETURN_IF_ERROR(ValidateGate(gate));
  CARPOOL_CHECK(policy != nullptr && policy->kind != nullptr);
  CARPOOL_CHECK(max_rows > 0);  // a dense model has no MoE layer
  ASSIGN_OR_RETURN(auto selector,
                   policy->kind->make(PolicySetup{gate, *policy, moe_layers, max_rows}));
  return MakeWithPolicy(gate, std::move(policy), std::move(selector), moe_layers, max_rows);
}

Result<std::unique_ptr<Router>> Router::MakeWithPolicy(const GateSpec& gate,
                                                       std::shared_ptr<const PolicySpec> options,
                                                       std::unique_ptr<RoutingPolicy> policy,
                                                       size_t moe_layers, size_t max_rows) {
  RETURN_IF_ERROR(ValidateGate(gate));
  return std::unique_ptr<Router>(std::make_unique<RouterImpl>(
      gate, std::move(options), std::move(policy), moe_layers, max_rows));
}

}  // namespace carpool
