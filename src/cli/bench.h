// The benchmarks under `carpool bench`, each in the file of its name.
#pragma once

#include "cli/command.h"

namespace carpool::cli {

void AddBenchDecode(CLI::App& bench);

}  // namespace carpool::cli
