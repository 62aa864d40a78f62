// THE LIST of dispatch profiles.
#include "routing/dispatch.h"

namespace carpool {

extern const DispatchProfile kSglang2025;
extern const DispatchProfile kSeedDoc;
extern const DispatchProfile kSglang202602;
extern const DispatchProfile kSglang202605;
extern const DispatchProfile kSglang202609;
extern const DispatchProfile kSglangCpu;
extern const DispatchProfile kVllm;
extern const DispatchProfile kTrtllm;
extern const DispatchProfile kLlamaCpp;
extern const DispatchProfile kCarpool;

std::span<const DispatchProfile* const> AllDispatchProfiles() {
  static constexpr const DispatchProfile* kAll[] = {
      &kSglang2025, &kSeedDoc, &kSglang202602, &kSglang202605, &kSglang202609,
      &kSglangCpu,  &kVllm,    &kTrtllm,       &kLlamaCpp,     &kCarpool,
  };
  return kAll;
}

}  // namespace carpool
