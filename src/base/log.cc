#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace carpool {

void InitLogging() {
  auto logger = std::make_shared<spdlog::logger>(
      "carpool", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::warn);
  if (const char* level = std::getenv("CARPOOL_LOG"); level != nullptr && *level != '\0') {
    spdlog::set_level(spdlog::level::from_str(level));
  }
}

void ShowInfo() {
  const char* level = std::getenv("CARPOOL_LOG");
  if (level == nullptr || *level == '\0') spdlog::set_level(spdlog::level::info);
}

}  // namespace carpool
