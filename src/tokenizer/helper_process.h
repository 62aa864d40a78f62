// HelperProcess: a child process that is spoken to in frames over a socket pair, with a deadline on
// everything.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace carpool {

/// Not thread-safe. The child is killed and reaped by the destructor; writing to a dead one never
/// raises SIGPIPE.
class HelperProcess {
 public:
  struct Reply {
    std::string word;
    std::string body;
  };
  enum class Failure : uint8_t { kNone, kTimeout, kDied, kTooLarge, kNonsense };

  /// Runs argv[0] with an almost empty environment, its own process group, no descriptors but stdin
  /// and stdout (the socket) and stderr (/dev/null). Error: Internal, when the process cannot be
  /// made.
  static Result<HelperProcess> Start(const std::vector<std::string>& argv);
  HelperProcess(HelperProcess&& other) noexcept;
  HelperProcess& operator=(HelperProcess&& other) noexcept;
  ~HelperProcess() { Stop(); }

  /// Sends a frame and waits for the reply, at most `max_body` bytes. After a failure only Stop()
  /// makes sense.
  Failure Exchange(std::string_view frame, std::chrono::milliseconds wall, size_t max_body,
                   Reply& reply);
  /// Sends a frame without waiting for an answer.
  Failure Send(std::string_view frame, std::chrono::milliseconds wall);
  Failure Receive(std::chrono::milliseconds wall, size_t max_body, Reply& reply);

  /// False when the child is gone or has said something unasked.
  bool Idle() const;
  pid_t pid() const { return pid_; }
  /// Kills and reaps.
  void Stop();

 private:
  HelperProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  Failure ReadSome(std::chrono::steady_clock::time_point deadline);

  pid_t pid_ = -1;
  int socket_ = -1;
  std::string inbox_;  // received, not yet part of a reply
};

}  // namespace carpool
