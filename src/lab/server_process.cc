#include "lab/server_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/mapped_file.h"
#include "lab/http_client.h"

namespace carpool {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

/// "http://…" behind "listening on", empty before the server says it.
std::string ListeningUrl(const std::string& log) {
  constexpr std::string_view kSays = "listening on ";
  const size_t at = log.find(kSays);
  if (at == std::string::npos) return {};
  const size_t begin = at + kSays.size(), end = log.find_first_of(",\n ", begin);
  return end == std::string::npos ? std::string() : log.substr(begin, end - begin);
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::Start(
    const std::vector<std::string>& arguments, const std::string& log_path, double patience_s) {
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", log_path,
                     std::strerror(errno));
  }
  std::vector<std::string> text = {"carpool", "serve", "--port", "0"};
  text.insert(text.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& t : text) argv.push_back(t.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);  // it died before the line above
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(log);
  if (pid < 0) {
    return MakeError(ErrorCode::kInternal, "cannot start a server: {}", std::strerror(errno));
  }
  std::unique_ptr<ServerProcess> server(new ServerProcess(pid, log_path));
  RETURN_IF_ERROR(server->WaitUntilServing(patience_s));
  return server;
}

bool ServerProcess::Ended() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

std::string ServerProcess::LastLine() const {
  auto log = ReadTextFile(log_path_);
  if (!log) return {};
  std::string text = std::move(log).value();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
}

Status ServerProcess::WaitUntilServing(double patience_s) {
  const auto start = Clock::now();
  while (SecondsSince(start) < patience_s) {
    if (Ended()) {
      return MakeError(ErrorCode::kInvalidArgument, "the server did not start: {} (log: {})",
                       LastLine(), log_path_);
    }
    if (url_.host.empty()) {
      const auto log = ReadTextFile(log_path_);
      const std::string url = log ? ListeningUrl(*log) : std::string();
      if (!url.empty()) {
        ASSIGN_OR_RETURN(url_, ParseServerUrl(url));
      }
    } else if (const auto health = HttpCall(url_.host, url_.port, "GET", "/health", {}, {});
               health && health->status == 200) {
      return {};
    }
    Pause();
  }
  return MakeError(ErrorCode::kInternal, "the server did not serve within {:.0f} s (log: {})",
                   patience_s, log_path_);
}

ServerProcess::~ServerProcess() {
  if (Ended()) return;
  kill(pid_, SIGTERM);
  const auto start = Clock::now();
  while (!Ended() && SecondsSince(start) < 10.0) Pause();
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace carpool
