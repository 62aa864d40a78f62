// Router: gate + policy over all rows of one step. What a MoE layer calls between its router matmul
// and its experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/views.h"
#include "ops/experts.h"
#include "routing/gate.h"
#include "routing/trace_sink.h"

namespace carpool {

enum class RowPhase : uint8_t { kPrefill, kDecode };

/// What the router may know of one token row.
struct RowInfo {
  RowPhase phase = RowPhase::kDecode;
  bool exact = false;  // this row keeps vanilla routing (per-request opt-out)
  bool valid = true;   // false: padding, excluded before scoring, ids -1
  // Row knobs of the server's policy; 0 / NaN = the policy's own setting.
  uint16_t k0 = 0;
  uint16_t kmax = 0;
  float p = __builtin_nanf("");
};

/// What one layer's routing did in one step; accumulated by the caller.
struct RoutingStats {
  uint64_t rows = 0;  // valid rows
  uint64_t decode_rows = 0;
  uint64_t assignments = 0;
  uint64_t distinct_experts = 0;  // T
  uint64_t piggybacks =
      0;                 // assignments to experts that only entered the union through another row
  uint64_t dropped = 0;  // vanilla assignments that the policy left out
  uint64_t changed_rows = 0;  // rows whose set differs from vanilla
};

/// Why a slot is in its row's set.
enum class SlotReason : uint8_t { kOwn, kPiggyback };
std::string_view ReasonName(SlotReason reason);

class RoutingPolicy;  // policy.h

/// The result of routing one layer in one step. Views into the router's own memory, valid until its
/// next Route().
struct RoutedStep {
  MatView<const int32_t> ids;       // [rows, max_set + fused shared], -1 = unused; each row in slot
                                    // order (choice descending)
  MatView<const float> weights;     // same shape, 0 where unused
  std::span<const int32_t> counts;  // [rows]
  MatView<const SlotReason> reasons;  // [rows, max_set] of the routed slots
  ExpertPlan plan;
  RoutingStats stats;
};

/// A parsed policy: `oea:k0=3` and the like (grammar: docs/ROUTING.md). `--routing`,
/// CARPOOL_ROUTING and friends.
struct PolicySpec;
Result<std::shared_ptr<const PolicySpec>> ParsePolicy(std::string_view text);
/// The canonical text of a policy, defaults left out: what reports and JSON print.
std::string PolicyText(const PolicySpec& spec);
/// First of CARPOOL_ROUTING, CARPOOL_OEA_K0, SGLANG_OEA_K0 that is set and not empty/0; else
/// vanilla. Errors name the variable.
Result<std::shared_ptr<const PolicySpec>> PolicyFromEnvironment();

class Router {
 public:
  /// Scratch for `max_rows` rows is allocated here, none later. `moe_layers` sizes per-layer
  /// numbers. Errors: invalid gate, policy knobs out of range for this gate (k0 > k …), per-layer
  /// list of the wrong length.
  static Result<std::unique_ptr<Router>> Make(const GateSpec& gate,
                                              std::shared_ptr<const PolicySpec> policy,
                                              size_t moe_layers, size_t max_rows);
  /// The same with a policy that is not in the list (replay, experiments); `options` holds what
  /// every policy has (min_rows, ride, mass) and the name that reports print.
  static Result<std::unique_ptr<Router>> MakeWithPolicy(const GateSpec& gate,
                                                        std::shared_ptr<const PolicySpec> options,
                                                        std::unique_ptr<RoutingPolicy> policy,
                                                        size_t moe_layers, size_t max_rows);
  virtual ~Router() = default;

  /// logits: [rows, N] fp32; bias: [N] or empty; rows.size() == logits.rows <= max_rows. Runs on
  /// the calling thread. Deterministic, no allocation. Never fails: NaN logits rank lowest, ids are
  /// distinct and in range.
  virtual RoutedStep Route(size_t moe_layer, std::span<const RowInfo> rows,
                           MatView<const float> logits, std::span<const float> bias) = 0;

  virtual const GateSpec& gate() const = 0;
  virtual const PolicySpec& policy() const = 0;
  /// True when a row's experts can depend on its batch mates.
  virtual bool batch_coupled() const = 0;
  /// Records every following Route() call to `sink` (trace.h); null stops. The
  /// sink must outlive the router or the next set_trace.
  virtual void set_trace(TraceSink* sink, TraceDetail detail) = 0;
};

}  // namespace carpool
