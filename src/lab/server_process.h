// A `carpool serve` of our own, started on a free port and stopped whatever happens.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lab/server_ab.h"

namespace carpool {

class ServerProcess {
 public:
  /// Runs this program with `serve --port 0` and `arguments`, its log in `log_path`, and waits
  /// until it serves. Errors: it ended instead (with the last line of its log), or took longer than
  /// `patience_s`.
  static Result<std::unique_ptr<ServerProcess>> Start(const std::vector<std::string>& arguments,
                                                      const std::string& log_path,
                                                      double patience_s);
  /// Asks it to stop, and kills it after ten seconds. It also ends when this process dies.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const ServerUrl& url() const { return url_; }

 private:
  ServerProcess(pid_t pid, std::string log_path) : pid_(pid), log_path_(std::move(log_path)) {}
  Status WaitUntilServing(double patience_s);
  bool Ended();
  std::string LastLine() const;

  pid_t pid_;
  std::string log_path_;
  ServerUrl url_;
};

}  // namespace carpool
