#include "tokenizer/helper_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace carpool {
namespace {

using Clock = std::chrono::steady_clock;
using Failure = HelperProcess::Failure;

constexpr size_t kMaxReplyHead = 64;

// Waits for `events` on the socket; false at the deadline.
bool WaitFor(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{socket, events, 0};
    const int n = poll(&p, 1, static_cast<int>(std::min<long>(left, 60'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

Failure SendAll(int socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitFor(socket, POLLOUT, deadline)) return Failure::kTimeout;
    } else if (errno != EINTR) {
      return Failure::kDied;
    }
  }
  return Failure::kNone;
}

}  // namespace

Result<HelperProcess> HelperProcess::Start(const std::vector<std::string>& argv) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return MakeError(ErrorCode::kInternal, "no socket pair for a helper process: {}",
                     std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], 0);
  posix_spawn_file_actions_adddup2(&actions, pair[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1 /* O_WRONLY */, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  // Its own group: a Ctrl-C meant for the server must not end renders of its last requests.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  char utf8[] = "LC_ALL=C.UTF-8";
  char* environment[] = {utf8, nullptr};
  pid_t pid = -1;
  const int code = posix_spawn(&pid, args[0], &actions, &attributes, args.data(), environment);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(pair[1]);
  if (code != 0) {
    close(pair[0]);
    return MakeError(ErrorCode::kInternal, "cannot start {}: {}", argv[0], std::strerror(code));
  }
  return HelperProcess(pid, pair[0]);
}

HelperProcess::HelperProcess(HelperProcess&& other) noexcept { *this = std::move(other); }

HelperProcess& HelperProcess::operator=(HelperProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(socket_, other.socket_);
  std::swap(inbox_, other.inbox_);
  return *this;
}

void HelperProcess::Stop() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

bool HelperProcess::Idle() const {
  pollfd p{socket_, POLLIN, 0};
  return socket_ >= 0 && inbox_.empty() && poll(&p, 1, 0) == 0;
}

Failure HelperProcess::Send(std::string_view frame, std::chrono::milliseconds wall) {
  const auto deadline = Clock::now() + wall;
  const Failure failure = SendAll(socket_, std::to_string(frame.size()) + "\n", deadline);
  return failure != Failure::kNone ? failure : SendAll(socket_, frame, deadline);
}

Failure HelperProcess::Receive(std::chrono::milliseconds wall, size_t max_body, Reply& reply) {
  const auto deadline = Clock::now() + wall;
  size_t head_end = inbox_.find('\n');  // of "word length\n"; two replies may have come at once
  while (head_end == std::string::npos) {
    if (inbox_.size() > kMaxReplyHead) return Failure::kNonsense;
    const Failure failure = ReadSome(deadline);
    if (failure != Failure::kNone) return failure;
    head_end = inbox_.find('\n');
  }
  const size_t space = inbox_.find(' ');
  if (space == std::string::npos || space > head_end) return Failure::kNonsense;
  size_t body = 0;
  const char* end = inbox_.data() + head_end;
  if (std::from_chars(inbox_.data() + space + 1, end, body).ptr != end) return Failure::kNonsense;
  if (body > max_body) return Failure::kTooLarge;
  while (inbox_.size() < head_end + 1 + body) {
    const Failure failure = ReadSome(deadline);
    if (failure != Failure::kNone) return failure;
  }
  reply.word = inbox_.substr(0, space);
  reply.body = inbox_.substr(head_end + 1, body);
  inbox_.erase(0, head_end + 1 + body);
  return Failure::kNone;
}

Failure HelperProcess::ReadSome(Clock::time_point deadline) {
  while (true) {
    if (!WaitFor(socket_, POLLIN, deadline)) return Failure::kTimeout;
    char buffer[1 << 16];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    if (n <= 0) return Failure::kDied;
    inbox_.append(buffer, static_cast<size_t>(n));
    return Failure::kNone;
  }
}

Failure HelperProcess::Exchange(std::string_view frame, std::chrono::milliseconds wall,
                                size_t max_body, Reply& reply) {
  const auto deadline = Clock::now() + wall;
  const Failure failure = Send(frame, wall);
  if (failure != Failure::kNone) return failure;
  return Receive(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()), max_body,
                 reply);
}

}  // namespace carpool
