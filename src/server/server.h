// Server: listens, loads the model meanwhile, serves, drains on SIGTERM.
#pragma once

#include "server/serve_options.h"

namespace carpool {

/// Serves on the calling thread until a signal ends it. The first SIGTERM or SIGINT lets requests
/// in progress finish and refuses new ones; the second stops at once. Errors: what options, address
/// and model can get wrong.
Status Serve(const ServeOptions& options);

}  // namespace carpool
