// THE LIST of endpoints. Each is defined in the file of its name.
#include "server/endpoint.h"

namespace carpool {

extern const Endpoint kChatCompletions, kCompletions, kDetokenize, kHealth, kMetricsEndpoint,
    kModel, kModels, kMoeRouting, kMoeStats, kPage, kTokenize, kVersion;

std::span<const Endpoint* const> AllEndpoints() {
  static constexpr const Endpoint* kAll[] = {
      &kChatCompletions, &kCompletions, &kDetokenize, &kHealth, &kMetricsEndpoint, &kModel,
      &kModels,          &kMoeRouting,  &kMoeStats,   &kPage,   &kTokenize,        &kVersion,
  };
  return kAll;
}

}  // namespace carpool
