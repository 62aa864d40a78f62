#include "base/log.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  carpool::InitLogging();
  return carpool::cli::Main(argc, argv);
}
