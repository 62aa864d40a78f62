// Logging to stderr, so that stdout stays for results. LogInfo("loaded {} tensors", n).
#pragma once

#include <spdlog/spdlog.h>

namespace carpool {

/// Sends everything to stderr in one short form; call once from main.
/// `CARPOOL_LOG=debug|info|warn|error` sets the level.
void InitLogging();
/// Lets LogInfo through, unless CARPOOL_LOG says otherwise: for programs that run for long.
void ShowInfo();

template <typename... Args>
void LogInfo(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogDebug(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}

}  // namespace carpool
