// THE LIST of routing policies. Each lives in the file policy_NAME.cc.
#include "routing/policy.h"

namespace carpool {

extern const PolicyKind kVanillaPolicy;
extern const PolicyKind kTopkPolicy;
extern const PolicyKind kOeaPolicy;
extern const PolicyKind kNearPolicy;
extern const PolicyKind kSerPolicy;
extern const PolicyKind kLynxPolicy;
extern const PolicyKind kXsharePolicy;
extern const PolicyKind kCapPolicy;

std::span<const PolicyKind* const> AllPolicies() {
  static constexpr const PolicyKind* kAll[] = {
      &kVanillaPolicy, &kTopkPolicy, &kOeaPolicy,    &kNearPolicy,
      &kSerPolicy,     &kLynxPolicy, &kXsharePolicy, &kCapPolicy,
  };
  return kAll;
}

std::string PolicyNames() {
  std::string names;
  for (const PolicyKind* k : AllPolicies()) {
    if (!names.empty()) names += ", ";
    names += k->name;
  }
  return names + " (exact = vanilla), auto";
}

}  // namespace carpool
