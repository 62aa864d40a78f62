// THE LIST of sub-commands. Each lives in the file of its name and registers itself here with one
// line.
#include "cli/command.h"

namespace carpool::cli {

void AddAllCommands(CLI::App& root) {
  AddInfo(root);
  AddGenerate(root);
  AddChat(root);
  AddPerplexity(root);
  AddLogits(root);
  AddAb(root);
  AddSweep(root);
  AddPlan(root);
  AddWhatif(root);
  AddBench(root);
  AddQuantize(root);
  AddConvert(root);
  AddExplain(root);
  AddDemo(root);
  AddRoute(root);
  AddServe(root);
}

}  // namespace carpool::cli
