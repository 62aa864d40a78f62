// PolicySpec: a parsed `name:key=value,…`, not yet bound to a gate.
#pragma once

#include <string>
#include <vector>

#include "routing/policy.h"

namespace carpool {

struct KnobValue {
  std::string_view name;       // the KnobInfo's
  std::vector<double> values;  // one, or one per MoE layer
  std::string text;            // as it was given: "3", "3/4/5", "@k0.json"
  bool per_layer = false;      // a list: "3/4/5" or a file
};

struct PolicySpec {
  const PolicyKind* kind = nullptr;
  std::vector<KnobValue> knobs;  // in the kind's order, only what was given
  // Options every batch-coupled policy takes.
  size_t min_rows = 1;  // fewer decode rows in the step: all rows stay vanilla
  bool ride = true;     // experts of prefill and exact rows are free to ride
  bool keep_mass =
      false;  // mass=keep: a gate that does not renormalise keeps the row's vanilla mass

  const KnobValue* Find(std::string_view name) const;
};

/// `auto[:max_kl=X]` is chosen by a calibration (the lab's), not by the router: the quality budget
/// it names, or nothing when `text` is another policy. Errors: unknown keys, max_kl not a number >
/// 0.
Result<std::optional<double>> ParseAutoPolicy(std::string_view text);

}  // namespace carpool
