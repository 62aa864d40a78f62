// RoutingPolicy: which experts each row gets, given the ranks of the whole step. One file per
// policy.
//
// To add one: a file policy_NAME.cc that defines a PolicyKind, and one line in all_policies.cc. The
// conformance test then runs over it. A policy never scores and never weighs; the router keeps
// padding, prefill and exact rows away from it, so a policy cannot break their contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/views.h"
#include "routing/gate.h"
#include "routing/router.h"

namespace carpool {

/// One layer of one step. All views are valid during Select only.
struct PolicyInput {
  size_t layer = 0;               // index among the MoE layers
  std::span<const RowInfo> rows;  // [rows]
  std::span<const uint32_t>
      active;                       // rows the policy decides (valid, decode, not exact), ascending
  std::span<const uint32_t> fixed;  // rows that keep vanilla routing, ascending; empty with ride=0
  MatView<const uint32_t> keys;     // [rows, padded N] rank keys (rank.h); 0 = not for this row
  MatView<const float> scores;      // [rows, padded N] unbiased gate scores
  MatView<const float> choices;     // [rows, padded N] what keys rank
  MatView<const int32_t> vanilla;   // [rows, k] the row's own top-k, best first
};

/// Preset by the router to vanilla for every row; Select rewrites the active ones.
struct PolicyOutput {
  MatView<int32_t> ids;         // [rows, max_set], best choice first
  MatView<SlotReason> reasons;  // [rows, max_set]
  std::span<int32_t> counts;    // [rows], >= 1

  void Set(size_t row, size_t slot, int32_t id, SlotReason reason) const {
    ids.Row(row)[slot] = id;
    reasons.Row(row)[slot] = reason;
  }
};

class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  /// The most ids Select ever gives a row.
  virtual size_t max_set() const = 0;
  /// Deterministic; no allocation; every active row gets >= 1 distinct, eligible id.
  virtual void Select(const PolicyInput& in, const PolicyOutput& out) noexcept = 0;
};

/// One knob of a policy. Numbers may be given per MoE layer.
struct KnobInfo {
  std::string_view name;
  std::string_view help;
  bool required = false;
  bool integer = false;
  double low = 0;
  double high = 0;  // inclusive; what the gate adds to this is checked when the policy is made
};

/// What a policy is made from: the gate, and the knobs that were given.
struct PolicySetup {
  const GateSpec& gate;
  const PolicySpec& spec;
  size_t layers;
  size_t max_rows;

  /// The knob's value for every layer; `fallback` where it was not given. Errors: list of the wrong
  /// length, values outside [low, high], naming the policy, the knob and the layer.
  Result<std::vector<size_t>> Integers(std::string_view name, size_t fallback, size_t low,
                                       size_t high) const;
  Result<std::vector<double>> Numbers(std::string_view name, double fallback, double low,
                                      double high) const;
};

struct PolicyKind {
  std::string_view name;
  std::string_view summary;
  bool batch_coupled = false;
  bool takes_mass = false;
  std::span<const KnobInfo> knobs;
  Result<std::unique_ptr<RoutingPolicy>> (*make)(const PolicySetup& setup);
  /// A setting that changes something for this gate, and one that equals vanilla bit for bit.
  std::string (*example)(const GateSpec& gate);
  std::string (*neutral)(const GateSpec& gate);
};

/// THE LIST (all_policies.cc).
std::span<const PolicyKind* const> AllPolicies();
/// "cap, lynx, near, …" for error messages.
std::string PolicyNames();

}  // namespace carpool
