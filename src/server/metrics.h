// Metrics: Prometheus counters and histograms, under the names that dashboards for vLLM, SGLang and
// llama-server know, and our own about experts. docs/SERVING.md lists them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/engine_loop.h"

namespace carpool {

/// Gauges, read on the engine thread when somebody scrapes.
struct EngineGauges {
  size_t running = 0, waiting = 0;
  PageAccount pages;
  uint64_t prefix_queries = 0, prefix_hits = 0;
  double oldest_wait_seconds = 0.0;
  std::string routing;
  std::optional<ChooserReport> chooser;  // while one picks the policies
};
EngineGauges ReadGauges(Engine& engine);

/// What the I/O thread knows of itself.
struct ServerGauges {
  size_t open_connections = 0;
  size_t active_choices = 0;
  double io_cpu_seconds = 0.0;
};

/// Every method may be called from any thread.
class Metrics {
 public:
  /// `bandwidth`: bytes per second that the machine was measured to read, 0 = not measured.
  static std::unique_ptr<Metrics> Make(const std::string& model_name, size_t threads,
                                       double bandwidth);
  virtual ~Metrics() = default;

  virtual void OnStep(const Engine& engine) = 0;
  virtual void OnRequestStart(size_t choices) = 0;
  /// seconds since the request's arrival / since the choice's last token.
  virtual void OnFirstToken(double seconds) = 0;
  virtual void OnNextToken(double seconds) = 0;
  virtual void OnChoiceEnd(const std::string& finish_reason, const RequestReport& report,
                           double seconds) = 0;
  virtual void OnRefused() = 0;
  virtual void OnHttp(int status) = 0;
  /// The text of /metrics.
  virtual std::string Serialize(const EngineGauges& engine, const ServerGauges& server) = 0;
};

}  // namespace carpool
