#include "lab/pace.h"

#include <chrono>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "engine/sampler.h"
#include "lab/statistics.h"

namespace carpool {
namespace {

void AddTo(StepStats& sum, const StepStats& s) {
  for (size_t l = 0; l < s.moe.size(); ++l) {
    RoutingStats& into = sum.moe[l];
    const RoutingStats& from = s.moe[l];
    into.rows += from.rows;
    into.decode_rows += from.decode_rows;
    into.assignments += from.assignments;
    into.distinct_experts += from.distinct_experts;
    into.piggybacks += from.piggybacks;
    into.dropped += from.dropped;
    into.changed_rows += from.changed_rows;
  }
  sum.steps += s.steps;
  sum.rows += s.rows;
  sum.expert_bytes += s.expert_bytes;
  sum.attention_ns += s.attention_ns;
  sum.router_ns += s.router_ns;
  sum.experts_ns += s.experts_ns;
  sum.dense_ns += s.dense_ns;
  sum.head_ns += s.head_ns;
  sum.total_ns += s.total_ns;
}

class PaceRun {
 public:
  PaceRun(const Model& model, ThreadPool& pool, std::span<const int32_t> x,
          std::span<Router* const> routers, const PaceOptions& o)
      : o_(o),
        x_(x),
        routers_(routers),
        lockstep_(model, pool, *routers[0], o.activations, o.batch, o.prompt + o.steps),
        sampler_(std::vector<uint8_t>(model.config().vocab_size, 1)),
        moe_layers_(std::max<size_t>(model.config().NumMoeLayers(), 1)),
        paces_(routers.size()),
        logits_(model.config().vocab_size) {
    for (Pace& p : paces_) p.stats.moe.resize(model.config().NumMoeLayers());
  }

  std::vector<Pace> Run() {
    const size_t n = routers_.size(), blocks = o_.rounds * 2 * n;
    Block(0, 0, false);  // warms caches, buffers and clocks
    for (size_t round = 0, done = 0; round < o_.rounds; ++round) {
      for (size_t i = 0; i < 2 * n; ++i) {
        Block(round, i < n ? i : 2 * n - 1 - i, true);
        if (o_.progress) o_.progress(++done, blocks);
      }
    }
    for (Pace& p : paces_) {
      p.step_us_median = Quantile(p.step_us, 0.5);
      p.moe_us_median = Quantile(p.moe_us, 0.5);
      p.tokens_per_s = static_cast<double>(o_.batch) / p.step_us_median * 1e6;
    }
    return std::move(paces_);
  }

 private:
  void Block(size_t round, size_t lane, bool timed) {
    lockstep_.set_router(*routers_[lane]);
    lockstep_.Reset();
    std::vector<int32_t> prompts(x_.begin() + static_cast<ptrdiff_t>(Start(round)),
                                 x_.begin() + static_cast<ptrdiff_t>(Start(round + 1)));
    lockstep_.Prefill({prompts.data(), o_.batch, o_.prompt - 1, o_.prompt});
    lockstep_.stats().Clear();
    std::vector<int32_t> tokens(o_.batch);  // the prompts' last tokens open the decoding
    for (size_t b = 0; b < o_.batch; ++b) tokens[b] = prompts[(b + 1) * o_.prompt - 1];
    std::vector<double> step_us, moe_us;
    for (size_t step = 0; step < o_.steps; ++step) {
      const StepStats& stats = lockstep_.stats();
      const uint64_t moe_before = stats.router_ns + stats.experts_ns;
      const auto start = std::chrono::steady_clock::now();
      const MatView<const float> logits = lockstep_.Step(tokens);
      const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
      step_us.push_back(us.count());
      moe_us.push_back(static_cast<double>(stats.router_ns + stats.experts_ns - moe_before) / 1e3 /
                       static_cast<double>(moe_layers_));
      for (size_t b = 0; b < o_.batch; ++b) tokens[b] = Sample(logits.RowSpan(b), round, b, step);
    }
    if (!timed) return;
    paces_[lane].step_us.push_back(Quantile(step_us, 0.5));
    paces_[lane].moe_us.push_back(Quantile(moe_us, 0.5));
    AddTo(paces_[lane].stats, lockstep_.stats());
  }

  size_t Start(size_t round) const { return round * o_.batch * o_.prompt; }

  int32_t Sample(std::span<const float> row, size_t round, size_t b, size_t step) {
    logits_.assign(row.begin(), row.end());
    SamplingParams params;
    params.seed = o_.seed + round * o_.batch + b;
    const int32_t token = sampler_.Sample(logits_, params, {}, {}, step);
    return token < 0 ? 0 : token;
  }

  const PaceOptions& o_;
  std::span<const int32_t> x_;
  std::span<Router* const> routers_;
  Lockstep lockstep_;
  Sampler sampler_;
  size_t moe_layers_;
  std::vector<Pace> paces_;
  std::vector<float> logits_;
};

}  // namespace

Status CheckPace(const Model& model, size_t tokens, const PaceOptions& o) {
  if (o.rounds < kMinForInterval) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--rounds: a 95 % interval needs at least {} rounds, got {}", kMinForInterval,
                     o.rounds);
  }
  if (o.batch == 0 || o.prompt == 0 || o.steps == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--batch, --prompt and --steps: wanted at least 1, got {}, {} and {}", o.batch,
                     o.prompt, o.steps);
  }
  if (o.prompt + o.steps > model.config().max_position) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--prompt {} + --steps {}: wanted at most the model's {} positions", o.prompt,
                     o.steps, model.config().max_position);
  }
  if (tokens < o.rounds * o.batch * o.prompt) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "too few prompts for an interval: {} rounds of {} need {} prompts of {} "
                     "tokens, the text has {}; give a longer text, a shorter --prompt, a smaller "
                     "--batch or --rounds (at least {})",
                     o.rounds, o.batch, o.rounds * o.batch, o.prompt, tokens / o.prompt,
                     kMinForInterval);
  }
  return {};
}

Result<std::vector<Pace>> MeasurePace(const Model& model, ThreadPool& pool,
                                      std::span<const int32_t> x, std::span<Router* const> routers,
                                      const PaceOptions& options) {
  RETURN_IF_ERROR(CheckPace(model, x.size(), options));
  return PaceRun(model, pool, x, routers, options).Run();
}

double BytesPerStep(const Pace& pace) {
  return static_cast<double>(pace.stats.expert_bytes) / static_cast<double>(pace.stats.steps);
}

Interval PairedRatio(std::span<const double> candidate, std::span<const double> baseline,
                     uint64_t seed) {
  CARPOOL_CHECK_EQ(candidate.size(), baseline.size());
  std::vector<double> logs;
  for (size_t i = 0; i + 1 < candidate.size(); i += 2) {
    logs.push_back(0.5 * (std::log(candidate[i] / baseline[i]) +
                          std::log(candidate[i + 1] / baseline[i + 1])));
  }
  return Exponentiate(BootstrapMean(logs, seed, BlockLength(logs.size())));
}

}  // namespace carpool
