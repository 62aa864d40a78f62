// Dispatch profiles: which routing kernel an engine takes for a config, as ordered rules over named
// predicates.
//
// A profile is data (dispatch_profiles_*.cc). Evaluation goes rule by rule, predicates left to
// right and short-circuited, but every predicate is logged with its values, so that a reader (or a
// verifier) can recompute every verdict.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "routing/routing_config.h"

namespace carpool {

/// What rules may look at. kSlots is K = k + s, kPerGroup is N div G.
enum class Fact : uint8_t {
  kDevice,
  kDtype,
  kTokens,
  kExperts,
  kTopK,
  kShared,
  kSlots,
  kGroups,
  kGroupsKept,
  kPerGroup,
  kPerGroupTimesKept,
  kGroupsTimesKept,
  kScoring,
  kBias,
  kRenormalize,
  kScaleIsOne,
  kUseGrouped,
  kCustomFunction,
  kTopkThenSoftmax,
  kZeroExperts,
  kGroupsDivide,
  kMethodUnspecified,
  kFlashinfer,
  kAiter,
  kAmx,
  kTorchNative,
  kTrtllmRouted,
  kJitGroupedTopk,
  kJitFusedTopk,
  kFusedGroupedTopk,
  kSimulation,
  kMxfp4Routed,
  kVectorGate,
  kIsa,
};

enum class Compare : uint8_t { kEq, kNe, kLe, kLt, kGe, kGt, kIn, kPowerOfTwo };

/// A number, a truth value, or a word. kIn has a comma-separated list of words or numbers on its
/// right. kFact stands only on the right side of a table's predicate and is replaced by that fact's
/// value when logged.
struct FactValue {
  enum class Kind : uint8_t { kNumber, kBool, kText, kFact };
  Kind kind = Kind::kNumber;
  int64_t number = 0;
  std::string_view text = {};

  constexpr FactValue() = default;
  constexpr FactValue(int v) : number(v) {}                           // NOLINT: tables read better
  constexpr FactValue(bool v) : kind(Kind::kBool), number(v) {}       // NOLINT
  constexpr FactValue(const char* v) : kind(Kind::kText), text(v) {}  // NOLINT
  constexpr FactValue(std::string_view v) : kind(Kind::kText), text(v) {}              // NOLINT
  constexpr FactValue(Fact v) : kind(Kind::kFact), number(static_cast<int64_t>(v)) {}  // NOLINT
  constexpr bool operator==(const FactValue&) const = default;
};

/// Left out unless the model is (not) grouped: the two arms of a source-level `G > 1 ? … : …`.
enum class PredicateWhen : uint8_t { kAlways, kManyGroups, kOneGroup };

struct Predicate {
  std::string_view name;
  Fact lhs = Fact::kDevice;
  Compare op = Compare::kEq;
  FactValue rhs;
  PredicateWhen when = PredicateWhen::kAlways;
};

struct DispatchRule {
  std::string_view rule;    // "R1"; alternatives of one rule share its name
  std::string_view kernel;  // empty when `next` says where to go on
  std::string_view
      function;           // GateFunction id that says what the kernel computes; empty: none of them
  std::string_view next;  // name of the table to go on with
  Predicate predicates[10];  // up to the first without a name
};

struct DispatchTable {
  std::string_view name;
  std::span<const DispatchRule> rules;
};

struct DispatchProfile {
  std::string_view name;
  std::string_view label;  // engine and version
  std::string_view evidence;
  std::span<const DispatchTable> tables;  // the first is the entry
  std::string_view notes[4];
  std::string_view default_device = "cuda";  // where --device is not given
};

/// THE LIST of profiles.
std::span<const DispatchProfile* const> AllDispatchProfiles();
Result<const DispatchProfile*> FindDispatchProfile(std::string_view name);

/// A config as one engine process sees it.
struct DispatchCase {
  RoutingConfig config;
  size_t fused_shared = 0;
  std::string device;          // empty: the profile's default
  std::string dtype = "bf16";  // of the router logits
  size_t tokens = 1;
  std::vector<std::pair<std::string, bool>> flags;  // --set NAME=0|1
};
/// Errors: unknown device, dtype or flag (the known ones are listed), shared slots the model has no
/// experts for.
Status CheckDispatchCase(const DispatchCase& c);

struct PredicateLog {
  std::string_view name;
  std::string_view lhs_name;
  FactValue lhs;
  Compare op;
  FactValue rhs;
  bool value = false;  // what it is, even when not asked
  bool evaluated = false;
};
struct RuleLog {
  std::string_view rule;
  std::string_view kernel;  // the next table when `next`
  std::string verdict;      // "match", "fail@NAME", "skipped"
  std::vector<PredicateLog> predicates;
  bool next = false;
};
struct TableLog {
  std::string_view table;
  std::vector<RuleLog> rules;
};
struct DispatchLog {
  const DispatchProfile* profile = nullptr;
  std::vector<TableLog> tables;  // in the order they were entered; the last one chose the kernel
  std::string_view kernel;
  std::string_view rule;
  std::string_view function;
  std::vector<std::string> notes;
};
DispatchLog Dispatch(const DispatchProfile& profile, const DispatchCase& c);

bool Evaluate(const FactValue& lhs, Compare op, const FactValue& rhs);
std::string_view Symbol(Compare op);
FactValue ValueOf(Fact fact, const DispatchCase& c);
std::string_view NameOf(Fact fact);

}  // namespace carpool
