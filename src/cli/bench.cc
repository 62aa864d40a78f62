// carpool bench: THE LIST of benchmarks.
#include "cli/bench.h"

namespace carpool::cli {

void AddBench(CLI::App& root) {
  CLI::App* bench = root.add_subcommand("bench", "Measure kernels and end-to-end speed");
  bench->require_subcommand(1);
  AddBenchDecode(*bench);
  AddBenchServe(*bench);
  AddBenchMembw(*bench);
  AddBenchMoe(*bench);
  AddBenchRouting(*bench);
}

}  // namespace carpool::cli
