// Any bytes as a config.json: an error or a config that every dispatch profile can explain.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "routing/explain.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  DispatchCase c;
  auto config = ParseRoutingConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config) return 0;
  c.config = *std::move(config);
  for (const DispatchProfile* profile : AllDispatchProfiles()) {
    const DispatchLog log = Dispatch(*profile, c);
    CARPOOL_CHECK(!log.kernel.empty());
    CARPOOL_CHECK(!ExplainJson(log, c).empty());
  }
  return 0;
}
