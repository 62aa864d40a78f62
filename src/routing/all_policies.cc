// THE LIST of routing policies. Each lives in the file policy_NAME.cc.
#include "routing/policy.h"

namespace carpool {

extern const PolicyKind kVanillaPolicy;
extern const PolicyKind kTopkPolicy;
extern const PolicyKind kOeaPolicy;

std::span<const PolicyKind* const> AllPolicies() {
  static constexpr const PolicyKind* kAll[] = {
      &kVanillaPolicy,
      &kTopkPolicy,
      &kOeaPolicy,
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
