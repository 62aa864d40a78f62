// Any bytes as a route input: an error or distinct ids in range under a batch-coupled policy.
#include <cstdint>
#include <set>
#include <string_view>

#include "base/check.h"
#include "routing/policy_spec.h"
#include "routing/route_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  auto input = ParseRouteInput({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!input || input->rows.size() * input->gate.num_experts > 100000) return 0;
  RouteOptions options;
  options.policy = *ParsePolicy("oea:k0=1");
  CARPOOL_CHECK(RouteJson(*input, options).has_value());
  auto router = *Router::Make(input->gate, options.policy, 1, input->rows.size() + 1);
  const MatView<const float> logits(input->logits.data(), input->rows.size(),
                                    input->gate.num_experts);
  const RoutedStep step = router->Route(0, input->rows, logits, input->bias);
  for (size_t r = 0; r < input->rows.size(); ++r) {
    std::set<int32_t> seen;
    for (int32_t i = 0; i < step.counts[r]; ++i) {
      const int32_t id = step.ids.Row(r)[i];
      CARPOOL_CHECK(id >= 0 &&
                    static_cast<size_t>(id) < input->gate.num_experts + input->gate.fused_shared);
      CARPOOL_CHECK(seen.insert(id).second);
    }
  }
  return 0;
}
