// Adds the time between construction and destruction to a counter of nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace carpool {

class Stopwatch {
 public:
  explicit Stopwatch(uint64_t& sum_ns)
      : sum_ns_(sum_ns), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    sum_ns_ += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                         std::chrono::steady_clock::now() - start_)
                                         .count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  uint64_t& sum_ns_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace carpool
