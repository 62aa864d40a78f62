// Worker: one thread that does what would keep the I/O thread from its sockets.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace carpool {

class Worker {
 public:
  Worker();
  /// Finishes the task in progress; others are dropped.
  ~Worker() { Stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Tasks run one at a time in order. They must not throw.
  void Post(std::function<void()> task);
  /// As the destructor; once.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace carpool
