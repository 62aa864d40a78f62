#include "lab/bench_moe.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <random>

#include "base/aligned.h"
#include "lab/bench_membw.h"
#include "ops/experts.h"
#include "ops/matmul.h"
#include "quant/random_matrix.h"

namespace carpool {
namespace {

using Clock = std::chrono::steady_clock;

struct Layer {
  PackedMatrix router;
  std::vector<float> bias;
  std::vector<float> popularity;  // [experts], already scaled
  ExpertBank bank;
};

/// A few random experts stand for all: the packed copies are what is read.
Result<Layer> MakeLayer(const BenchMoeOptions& o, size_t index, ThreadPool& pool) {
  constexpr size_t kDistinct = 2;
  const MoeShape& s = o.shape;
  const size_t experts = s.gate.num_experts;
  std::vector<OwnedMatrix> owned(3 * (kDistinct + 1));
  std::vector<ExpertSource> sources(kDistinct + 1);
  pool.ParallelFor(owned.size(), [&](size_t i, size_t) {
    const size_t width = i / 3 == kDistinct ? std::max(s.shared_width, size_t{32}) : s.width;
    const bool down = i % 3 == 2;
    owned[i] = RandomMatrix(o.format, down ? s.hidden : width, down ? width : s.hidden,
                            o.seed + index * 1000 + i);
  });
  for (size_t e = 0; e <= kDistinct; ++e)
    sources[e] = {owned[3 * e].view, owned[3 * e + 1].view, owned[3 * e + 2].view};
  std::vector<ExpertSource> all(experts);
  for (size_t e = 0; e < experts; ++e) all[e] = sources[e % kDistinct];
  Layer layer;
  const bool shared = s.shared_width > 0 && !o.experts_only;
  ASSIGN_OR_RETURN(layer.bank, ExpertBank::Pack(all, shared ? &sources[kDistinct] : nullptr, pool,
                                                {.format = o.format}));
  const OwnedMatrix router =
      RandomMatrix(WeightFormat::kBF16, experts, s.hidden, o.seed + index * 1000 + 999);
  ASSIGN_OR_RETURN(layer.router, PackedMatrix::Pack(router.view));
  if (s.gate.has_bias) layer.bias.assign(experts, 0.0f);
  std::mt19937_64 random(o.seed + index);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  layer.popularity.resize(experts);
  for (auto& p : layer.popularity) p = o.logits.popularity * normal(random);
  return layer;
}

size_t BytesAlways(const BenchMoeOptions& o, const Layer& layer) {
  return o.experts_only ? 0 : layer.bank.bytes_shared() + layer.router.bytes();
}

/// Bell-shaped values, variance 1: the sum of four uniforms.
void FillBell(std::span<float> values, std::mt19937_64& random) {
  for (auto& v : values) {
    const uint64_t bits = random();
    uint64_t sum = 0;
    for (int k = 0; k < 4; ++k) sum += (bits >> (16 * k)) & 0xFFFF;
    v = (static_cast<float>(sum) / 65535.0f - 2.0f) * 1.7320508f;
  }
}

struct Samples {
  std::vector<double> us, distinct, assignments, rate;
};

class BatchRun {
 public:
  BatchRun(const BenchMoeOptions& o, const std::vector<Layer>& layers, size_t batch,
           ThreadPool& pool)
      : o_(o),
        layers_(layers),
        batch_(batch),
        pool_(pool),
        random_(o.seed + 17 * batch),
        x_(batch * o.shape.hidden),
        y_(batch * o.shape.hidden),
        logits_(batch * o.shape.gate.num_experts),
        topic_(o.shape.gate.num_experts),
        rows_(batch) {}

  Status Prepare() {
    for (const auto& policy : o_.policies) {
      ASSIGN_OR_RETURN(auto router, Router::Make(o_.shape.gate, policy, o_.layers, batch_));
      routers_.push_back(std::move(router));
    }
    samples_.resize(routers_.size());
    return {};
  }

  void Run() {
    constexpr size_t kMinRounds = 7, kMaxRounds = 4000, kWarmUp = 2;
    const auto start = Clock::now();
    for (size_t round = 0; round < kWarmUp + kMaxRounds; ++round) {
      const std::chrono::duration<double> spent = Clock::now() - start;
      if (round >= kWarmUp + kMinRounds && spent.count() > o_.seconds) break;
      for (size_t j = 0; j < routers_.size(); ++j) {
        const size_t p = (j + round) % routers_.size();
        Step(p, (round * routers_.size() + j) % layers_.size(), round >= kWarmUp);
      }
    }
  }

  const std::vector<Samples>& samples() const { return samples_; }

 private:
  void Step(size_t p, size_t layer_idx, bool timed) {
    const Layer& layer = layers_[layer_idx];
    const size_t experts = o_.shape.gate.num_experts;
    FillBell(x_.span(), random_);
    FillBell(topic_.span(), random_);
    const bool skewed = o_.logits.popularity != 0.0f || o_.logits.topic != 0.0f;
    const MatView<const float> x(x_.data(), batch_, o_.shape.hidden);
    const MatView<float> y(y_.data(), batch_, o_.shape.hidden),
        logits(logits_.data(), batch_, experts);
    arena_.Reset();
    OpContext exact{pool_, arena_}, context{pool_, arena_, o_.activations};
    auto start = Clock::now();
    MatMul(x, layer.router, logits, exact);
    if (skewed) {
      for (size_t r = 0; r < batch_; ++r) {
        for (size_t e = 0; e < experts; ++e)
          logits.Row(r)[e] += layer.popularity[e] + o_.logits.topic * topic_[e];
      }
    }
    const RoutedStep routed = routers_[p]->Route(layer_idx, rows_, logits, layer.bias);
    if (o_.experts_only) start = Clock::now();
    RunExperts(layer.bank, x, routed.plan, y, context);
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (!timed) return;
    const auto distinct = static_cast<double>(routed.stats.distinct_experts);
    const double bytes = distinct * static_cast<double>(layer.bank.bytes_per_expert()) +
                         static_cast<double>(BytesAlways(o_, layer));
    samples_[p].us.push_back(us);
    samples_[p].distinct.push_back(distinct);
    samples_[p].assignments.push_back(static_cast<double>(routed.stats.assignments));
    samples_[p].rate.push_back(bytes / us * 1e-3);
    if (o_.on_step) o_.on_step({batch_, PolicyText(*o_.policies[p]), us, routed.ids});
  }

  const BenchMoeOptions& o_;
  const std::vector<Layer>& layers_;
  size_t batch_;
  ThreadPool& pool_;
  std::mt19937_64 random_;
  AlignedBuffer<float> x_, y_, logits_, topic_;
  std::vector<RowInfo> rows_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::vector<Samples> samples_;
  Arena arena_;
};

double Mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

/// Of the last x.size() rows.
void AddSavings(const std::vector<double>& x, const std::vector<double>& y,
                BenchMoeReport& report) {
  const size_t first = report.rows.size() - x.size();
  for (size_t p = 1; p < x.size(); ++p) {
    std::vector<double> others_x = x, others_y = y;
    others_x.erase(others_x.begin() + static_cast<ptrdiff_t>(p));
    others_y.erase(others_y.begin() + static_cast<ptrdiff_t>(p));
    const LinearFit line = FitLine(others_x, others_y);
    const BenchMoeRow& row = report.rows[first + p];
    report.savings.push_back({row.batch, row.routing,
                              1.0 - (line.intercept + line.slope * x[p]) / y[0],
                              1.0 - y[p] / y[0]});
  }
}

double Roof(const BenchMoeOptions& options) {
  constexpr size_t kPasses = 8;
  return BestBandwidth(BenchMembw({options.threads}, options.membw_bytes, kPasses));
}

}  // namespace

Result<LogitGenerator> ParseLogitGenerator(std::string_view text) {
  constexpr std::string_view kKnown = "random, skewed[:popularity=1,topic=0]";
  if (text == "random") return LogitGenerator{};
  const auto error = [&] {
    return MakeError(ErrorCode::kInvalidArgument, "--logits: unknown generator '{}'; known: {}",
                     text, kKnown);
  };
  constexpr std::string_view kSkewed = "skewed";
  if (!text.starts_with(kSkewed)) return error();
  LogitGenerator generator{1.0f, 0.0f};
  std::string_view rest = text.substr(kSkewed.size());
  for (char separator = ':'; !rest.empty(); separator = ',') {
    if (rest.front() != separator) return error();
    rest.remove_prefix(1);
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size());
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) return error();
    float* target = item.substr(0, equals) == "popularity" ? &generator.popularity
                    : item.substr(0, equals) == "topic"    ? &generator.topic
                                                           : nullptr;
    if (target == nullptr) return error();
    const char* end = item.data() + item.size();
    const auto [stop, code] = std::from_chars(item.data() + equals + 1, end, *target);
    if (code != std::errc() || stop != end || !(*target >= 0.0f && *target <= 100.0f))
      return error();
  }
  return generator;
}

Result<BenchMoeReport> BenchMoe(const BenchMoeOptions& options) {
  ThreadPool pool(options.threads);
  BenchMoeReport report;
  report.isa = IsaName(Kernels().isa);
  report.membw_gbytes_per_s = Roof(options);
  std::vector<Layer> layers;
  const size_t total = options.layers + options.batches.size();
  const auto progress = [&](size_t done) {
    if (options.progress) options.progress(done, total);
  };
  for (size_t l = 0; l < options.layers; ++l) {
    progress(l);
    ASSIGN_OR_RETURN(Layer layer, MakeLayer(options, l, pool));
    layers.push_back(std::move(layer));
  }
  report.bytes_per_expert = layers[0].bank.bytes_per_expert();
  report.bytes_always = BytesAlways(options, layers[0]);
  for (size_t b = 0; b < options.batches.size(); ++b) {
    progress(options.layers + b);
    BatchRun run(options, layers, options.batches[b], pool);
    RETURN_IF_ERROR(run.Prepare());
    run.Run();
    std::vector<double> x, y;
    for (size_t p = 0; p < options.policies.size(); ++p) {
      const Samples& s = run.samples()[p];
      BenchMoeRow row;
      row.batch = options.batches[b];
      row.routing = PolicyText(*options.policies[p]);
      row.steps = s.us.size();
      row.distinct_experts = Mean(s.distinct);
      row.rows_per_expert = Mean(s.assignments) / row.distinct_experts;
      row.us_median = Quantile(s.us, 0.5);
      row.us_p10 = Quantile(s.us, 0.1);
      row.us_p90 = Quantile(s.us, 0.9);
      row.gbytes_per_s = Quantile(s.rate, 0.5);
      row.tokens_per_s = static_cast<double>(row.batch) / row.us_median * 1e6;
      x.push_back(row.distinct_experts);
      y.push_back(row.us_median);
      report.rows.push_back(std::move(row));
    }
    if (x.size() >= 3) report.fits.push_back({options.batches[b], FitLine(x, y)});
    if (x.size() >= 4) AddSavings(x, y, report);
  }
  report.membw_gbytes_per_s = std::max(report.membw_gbytes_per_s, Roof(options));
  for (auto& row : report.rows)
    row.fraction_of_membw = row.gbytes_per_s / report.membw_gbytes_per_s;
  progress(total);
  return report;
}

}  // namespace carpool
