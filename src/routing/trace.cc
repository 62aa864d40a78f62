#include "routing/trace.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "routing/gate_math.h"
#include "routing/policy_spec.h"
#include "routing/rank.h"
#include "routing/row_kernels.h"

namespace carpool {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

/// JSON has no NaN or infinities: those are strings.
void AppendNumber(std::string& out, float value) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), "{}", value);
  } else {
    out += value != value ? "\"NaN\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
  }
}

template <typename Append>
void AppendList(std::string& out, std::string_view key, size_t n, Append append) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":[", key);
  for (size_t i = 0; i < n; ++i) {
    if (i > 0) out += ',';
    append(i);
  }
  out += ']';
}

template <typename T>
void Append(std::string& out, std::string_view key, T value) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":{}", key, value);
}

bool DropsGroups(const GateSpec& gate) { return gate.num_groups > gate.groups_kept; }

std::string_view PhaseName(RowPhase phase) {
  return phase == RowPhase::kDecode ? "decode" : "prefill";
}

}  // namespace

Result<std::unique_ptr<FileTraceSink>> FileTraceSink::Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "trace: cannot create '{}': {}", path,
                     std::strerror(errno));
  }
  std::unique_ptr<FileTraceSink> sink(new FileTraceSink(file));
  sink->buffer_.reserve(kBufferBytes);
  return sink;
}

FileTraceSink::~FileTraceSink() {
  Flush();
  std::fclose(file_);
}

void FileTraceSink::Line(std::string_view json) {
  if (buffer_.size() + json.size() + 1 > kBufferBytes) Flush();
  buffer_ += json;
  buffer_ += '\n';
}

void FileTraceSink::Flush() {
  ok_ = ok_ && std::fwrite(buffer_.data(), 1, buffer_.size(), file_) == buffer_.size() &&
        std::fflush(file_) == 0;
  buffer_.clear();
}

uint64_t LogitsHash(const float* logits, size_t n) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (size_t e = 0; e < n; ++e)
    hash = (hash ^ std::bit_cast<uint32_t>(logits[e])) * 0x100000001B3ull;
  return hash;
}

void Tracer::Config(const GateSpec& g, const PolicySpec& policy) {
  line_.clear();
  fmt::format_to(std::back_inserter(line_),
                 "{{\"record\":\"config\",\"routing\":\"{}\",\"batch_coupled\":{},\"kernel\":\"{}"
                 "\",\"simd\":\"{}\"",
                 PolicyText(policy), policy.kind->batch_coupled,
                 HasVectorScoring(g) ? "score_row" : "score_row_scalar", RowKernelTarget());
  fmt::format_to(std::back_inserter(line_),
                 ",\"gate\":{{\"N\":{},\"G\":{},\"kg\":{},\"k\":{},\"s\":{},\"act\":\"{}\","
                 "\"choice\":\"{}\",\"bias\":{},\"group_score\":\"{}\","
                 "\"mask\":\"{}\",\"order\":\"{}\",\"weights\":\"{}\",\"renormalize\":\"{}\","
                 "\"divisor\":\"{}\",\"epsilon\":{},\"scale\":{},"
                 "\"scale_place\":\"{}\",\"score_dtype\":\"{}\"}}}}",
                 g.num_experts, g.num_groups, g.groups_kept, g.top_k, g.fused_shared,
                 Name(g.activation), Name(g.choice), g.has_bias, Name(g.group_score),
                 Name(g.group_mask), Name(g.order), Name(g.weight_source), Name(g.renormalize),
                 Name(g.divisor), g.renorm_epsilon, g.scale, Name(g.scale_place),
                 Name(g.score_number));
  sink_.Line(line_);
}

void Tracer::Call(const TraceCall& call) {
  if (detail_.level >= 1) Counters(call);
  if (detail_.level < 2 || call.step % detail_.every != 0) return;
  for (size_t r = 0; r < call.rows.size(); ++r) {
    if (call.rows[r].valid) Row(call, r);
  }
}

void Tracer::RankGroups(const TraceCall& call, size_t r) {
  const GateSpec& gate = *call.gate;
  const size_t padded = RoundUp(gate.num_experts, kRowBlock);
  if (group_keys_.size() != padded) {
    group_scratch_ = AlignedBuffer<float>(3 * padded);
    group_keys_ = AlignedBuffer<uint32_t>(padded);
  }
  RowScores scratch;
  scratch.logit = group_scratch_.data();
  scratch.score = scratch.logit + padded;
  scratch.choice = scratch.score + padded;
  scratch.key = group_keys_.data();
  group_scores_.resize(gate.num_groups);
  GroupScores(gate, call.logits.Row(r), call.bias.empty() ? nullptr : call.bias.data(), scratch,
              group_scores_.data());
  group_order_.resize(gate.num_groups);
  std::iota(group_order_.begin(), group_order_.end(), 0u);
  std::stable_sort(group_order_.begin(), group_order_.end(), [&](uint32_t a, uint32_t b) {
    return RankKey(group_scores_[a]) > RankKey(group_scores_[b]);
  });
}

void Tracer::Counters(const TraceCall& call) {
  const GateSpec& gate = *call.gate;
  size_t nan_rows = 0, inf_rows = 0, tied_rows = 0, tied_groups = 0, zero_sums = 0;
  double dropped_mass = 0;
  for (size_t r = 0; r < call.rows.size(); ++r) {
    if (!call.rows[r].valid) continue;
    const float* x = call.logits.Row(r);
    const uint32_t* key = call.keys.Row(r);
    const float* score = call.scores.Row(r);
    const int32_t* vanilla = call.vanilla.Row(r);
    // Branch-free over the row, so that the compiler vectorises it.
    uint32_t nans = 0, infs = 0, at_least = 0;
    const uint32_t last = key[vanilla[gate.top_k - 1]];
    for (size_t e = 0; e < gate.num_experts; ++e) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x[e]) & 0x7FFFFFFFu;
      nans += magnitude > 0x7F800000u;
      infs += magnitude == 0x7F800000u;
      at_least += key[e] >= last;
    }
    nan_rows += nans > 0;
    inf_rows += infs > 0;
    tied_rows += at_least > gate.top_k;
    if (DropsGroups(gate)) {
      RankGroups(call, r);
      tied_groups += RankKey(group_scores_[group_order_[gate.groups_kept - 1]]) ==
                     RankKey(group_scores_[group_order_[gate.groups_kept]]);
    }
    float own = 0, kept = 0;
    for (size_t i = 0; i < gate.top_k; ++i) own += score[vanilla[i]];
    for (int32_t i = 0; i < call.counts[r]; ++i) {
      const auto id = static_cast<size_t>(call.ids.Row(r)[i]);
      if (id < gate.num_experts) kept += score[id];
    }
    zero_sums += kept == 0;
    dropped_mass += static_cast<double>(own - kept);
  }
  const RoutingStats& s = *call.stats;
  line_.clear();
  fmt::format_to(
      std::back_inserter(line_),
      "{{\"record\":\"step\",\"step\":{},\"layer\":{},\"T\":{},\"T_real\":{},\"decode\":{}",
      call.step, call.layer, call.rows.size(), s.rows, s.decode_rows);
  Append(line_, "assignments", s.assignments);
  Append(line_, "distinct", s.distinct_experts);
  Append(line_, "piggybacks", s.piggybacks);
  Append(line_, "dropped", s.dropped);
  Append(line_, "changed_rows", s.changed_rows);
  line_ += ",\"mass_dropped\":";
  AppendNumber(line_, static_cast<float>(dropped_mass));
  Append(line_, "nan_rows", nan_rows);
  Append(line_, "inf_rows", inf_rows);
  Append(line_, "ties_at_k", tied_rows);
  Append(line_, "ties_in_groups", tied_groups);
  Append(line_, "zero_sums", zero_sums);
  line_ += '}';
  sink_.Line(line_);
}

void Tracer::Groups(const TraceCall& call, size_t r) {
  const size_t kept = call.gate->groups_kept;
  RankGroups(call, r);
  AppendList(line_, "group_scores", group_scores_.size(),
             [&](size_t g) { AppendNumber(line_, group_scores_[g]); });
  AppendList(line_, "groups_kept", kept,
             [&](size_t i) { fmt::format_to(std::back_inserter(line_), "{}", group_order_[i]); });
  line_ += ",\"group_margin\":";
  AppendNumber(line_, group_scores_[group_order_[kept - 1]] - group_scores_[group_order_[kept]]);
}

void Tracer::Row(const TraceCall& call, size_t r) {
  const GateSpec& gate = *call.gate;
  const size_t padded = call.keys.cols, shown = std::min(gate.top_k + 2, gate.num_experts);
  best_.resize(shown);
  const size_t found = TopK(call.keys.Row(r), nullptr, padded, shown, best_.data());
  const float* choice = call.choices.Row(r);
  const float* score = call.scores.Row(r);
  line_.clear();
  fmt::format_to(
      std::back_inserter(line_),
      "{{\"record\":\"row\",\"step\":{},\"layer\":{},\"row\":{},\"phase\":\"{}\",\"exact\":{}",
      call.step, call.layer, r, PhaseName(call.rows[r].phase), call.rows[r].exact);
  fmt::format_to(std::back_inserter(line_), ",\"logits\":\"{:016x}\"",
                 LogitsHash(call.logits.Row(r), gate.num_experts));
  AppendList(line_, "best", found, [&](size_t i) {
    const auto e = static_cast<size_t>(best_[i]);
    fmt::format_to(std::back_inserter(line_), "{{\"id\":{},\"a\":", e);
    AppendNumber(line_, score[e]);
    line_ += ",\"b\":";
    AppendNumber(line_, call.bias.empty() ? 0.0f : call.bias[e]);
    line_ += ",\"c\":";
    AppendNumber(line_, choice[e]);
    line_ += '}';
  });
  line_ += ",\"margin\":";
  if (found > gate.top_k) {
    AppendNumber(line_, choice[best_[gate.top_k - 1]] - choice[best_[gate.top_k]]);
  } else {
    line_ += "null";
  }
  if (DropsGroups(gate)) Groups(call, r);
  const int32_t* vanilla = call.vanilla.Row(r);
  AppendList(line_, "vanilla", gate.top_k,
             [&](size_t i) { fmt::format_to(std::back_inserter(line_), "{}", vanilla[i]); });
  const auto count = static_cast<size_t>(call.counts[r]);
  AppendList(line_, "ids", count, [&](size_t i) {
    fmt::format_to(std::back_inserter(line_), "{}", call.ids.Row(r)[i]);
  });
  AppendList(line_, "weights", count,
             [&](size_t i) { AppendNumber(line_, call.weights.Row(r)[i]); });
  AppendList(line_, "reasons", count, [&](size_t i) {
    const bool shared = call.ids.Row(r)[i] >= static_cast<int32_t>(gate.num_experts);
    fmt::format_to(std::back_inserter(line_), "\"{}\"",
                   shared ? "shared" : ReasonName(call.reasons.Row(r)[i]));
  });
  line_ += '}';
  sink_.Line(line_);
}

}  // namespace carpool
