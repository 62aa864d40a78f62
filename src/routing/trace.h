// Routing traces: what the router saw and decided, as JSON lines with stable keys and round-trip
// numbers.
//
// Level 0: one record per router (gate, policy, kernel). Level 1: one per layer and step
// (counters). Level 2: one per valid row (best choices, margins, the ids and why); an engine adds one
// per step with the request of each row. A level includes the lower ones. Replay (replay.h) reads
// level 2.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/views.h"
#include "routing/policy.h"

namespace carpool {

/// Takes one JSON object per call, without the newline. Called on the thread that routes.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void Line(std::string_view json) = 0;
};

/// Appends lines to a file through its own buffer; flushed when destroyed.
class FileTraceSink final : public TraceSink {
 public:
  /// Errors: the file cannot be created.
  static Result<std::unique_ptr<FileTraceSink>> Open(const std::string& path);
  ~FileTraceSink() override;
  void Line(std::string_view json) override;
  /// False once a write failed (disk full); the destructor cannot say so.
  bool ok() const { return ok_; }
  /// Writes out what is buffered.
  void Flush();

 private:
  explicit FileTraceSink(std::FILE* file) : file_(file) {}
  std::FILE* file_;
  std::string buffer_;
  bool ok_ = true;
};

inline constexpr int kMaxTraceLevel = 2;

/// Everything one Route call knows; views as in PolicyInput and RoutedStep.
struct TraceCall {
  const GateSpec* gate = nullptr;
  const PolicySpec* policy = nullptr;
  uint64_t step = 0;
  size_t layer = 0;
  std::span<const RowInfo> rows;
  MatView<const float> logits;
  std::span<const float> bias;
  MatView<const uint32_t> keys;
  MatView<const float> scores;
  MatView<const float> choices;
  MatView<const int32_t> vanilla;
  MatView<const int32_t> ids;
  MatView<const float> weights;
  MatView<const SlotReason> reasons;
  std::span<const int32_t> counts;
  const RoutingStats* stats = nullptr;
};

/// The router's side. Keeps its buffers between calls.
class Tracer {
 public:
  Tracer(TraceSink& sink, int level) : sink_(sink), level_(level) {}
  void Config(const GateSpec& gate, const PolicySpec& policy);
  void Call(const TraceCall& call);

 private:
  void Counters(const TraceCall& call);
  void Row(const TraceCall& call, size_t r);

  TraceSink& sink_;
  int level_;
  std::string line_;
  std::vector<int32_t> best_;
};

/// FNV-1a over the bits of one row of logits: ties a trace to its input.
uint64_t LogitsHash(const float* logits, size_t n);

}  // namespace carpool
