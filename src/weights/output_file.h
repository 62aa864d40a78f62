// Writing files so that an interrupted run leaves none that looks whole.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"

namespace carpool {

using ByteSink = std::function<Status(std::span<const std::byte>)>;

/// Writes `path` by way of `path`.tmp, which is renamed when `write` has handed all bytes to its
/// sink, and removed when it failed. Errors: InvalidArgument (cannot be written), and those of
/// `write`.
Status WriteFile(const std::string& path, const std::function<Status(const ByteSink&)>& write);

}  // namespace carpool
