// The benchmarks under `carpool bench`, each in the file of its name.
#pragma once

#include "cli/command.h"

namespace carpool::cli {

void AddBenchDecode(CLI::App& bench);
void AddBenchServe(CLI::App& bench);
void AddBenchMembw(CLI::App& bench);
void AddBenchMoe(CLI::App& bench);
void AddBenchRouting(CLI::App& bench);

}  // namespace carpool::cli
