// ServerContext: what endpoints share. Lives on the I/O thread; members say what others may touch.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine_loop.h"
#include "server/generation.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/serve_options.h"
#include "server/worker.h"

namespace carpool {

class ServerContext {
 public:
  explicit ServerContext(const ServeOptions& serve_options) : options(serve_options) {}

  const ServeOptions options;
  std::string model_name;
  HttpServer* http = nullptr;
  std::unique_ptr<EngineLoop> loop;          // null while the model loads
  std::unique_ptr<Metrics> metrics;          // null while the model loads
  std::shared_ptr<const PolicySpec> policy;  // vanilla while a chooser picks
  std::string routing;                       // what models_list says: the policy's text, or "auto"
  bool draining = false;
  std::unique_ptr<ChatTemplate> chat_template;  // null: no_chat_reason says why
  std::string no_chat_reason;
  /// Runs requests' parsing and tokenizing, off the I/O thread.
  Worker worker;

  RequestRules Rules() const;

  void Register(uint64_t id, std::shared_ptr<Generation> generation, size_t choice);
  /// Hands one step's messages to their generations.
  void Deliver(std::vector<EngineMessage> messages);
  /// Lets go of everything under way; the last thing before the HTTP server ends.
  void Clear();
  size_t active() const { return active_.size(); }

 private:
  struct Place {
    std::shared_ptr<Generation> generation;
    size_t choice = 0;
  };
  std::unordered_map<uint64_t, Place> active_;
};

}  // namespace carpool
