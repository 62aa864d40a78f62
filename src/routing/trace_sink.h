// Where routing traces (trace.h) go, and how much of them.
#pragma once

#include <cstdint>
#include <string_view>

namespace carpool {

/// Takes one JSON object per call, without the newline. Called on the thread that routes.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void Line(std::string_view json) = 0;
};

inline constexpr int kMaxTraceLevel = 2;

struct TraceDetail {
  int level = 1;
  uint64_t every = 1;  // level 2: rows of every n-th step; must be 1 for a trace to be replayed
};

}  // namespace carpool
