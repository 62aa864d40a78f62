#include "routing/dispatch.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/check.h"
#include "routing/row_kernels.h"

namespace carpool {
namespace {

bool Flag(const DispatchCase& c, std::string_view name, bool fallback) {
  for (const auto& [key, value] : c.flags) {
    if (key == name) return value;
  }
  return fallback;
}

constexpr std::string_view kFlags[] = {"flashinfer",
                                       "aiter",
                                       "amx",
                                       "torch_native",
                                       "runner_trtllm_routed",
                                       "jit_grouped_topk",
                                       "jit_fused_topk",
                                       "fused_grouped_topk",
                                       "simulation",
                                       "runner_mxfp4_routed"};
constexpr std::string_view kDevices[] = {"cuda", "hip", "cpu", "xpu", "musa"};
constexpr std::string_view kDtypes[] = {"bf16", "fp16", "fp32"};

/// The device's name in static storage: logs outlive the case.
std::string_view OneOfDevices(std::string_view device) {
  return *std::find(std::begin(kDevices), std::end(kDevices), device);
}

template <typename List>
bool OneOf(const List& list, std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

bool InList(const FactValue& lhs, std::string_view list) {
  while (true) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    if (lhs.kind == FactValue::Kind::kText) {
      if (item == lhs.text) return true;
    } else {
      int64_t number = 0;
      std::from_chars(item.data(), item.data() + item.size(), number);
      if (number == lhs.number) return true;
    }
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

/// G as the rules use it: a model without groups has one.
int64_t GroupsOf(const RoutingConfig& c) {
  return c.grouped() ? static_cast<int64_t>(c.num_groups) : 1;
}
int64_t KeptOf(const RoutingConfig& c) {
  return c.grouped() ? static_cast<int64_t>(c.groups_kept) : 1;
}

FactValue Number(int64_t value) {
  FactValue v;
  v.number = value;
  return v;
}

RuleLog LogRule(const DispatchRule& rule, const DispatchCase& c, bool asked) {
  RuleLog log{rule.rule,
              rule.next.empty() ? rule.kernel : rule.next,
              asked ? "match" : "skipped",
              {},
              !rule.next.empty()};
  bool open = asked;
  for (const Predicate& p : rule.predicates) {
    if (p.name.empty()) break;
    const bool many = GroupsOf(c.config) > 1;
    if ((p.when == PredicateWhen::kManyGroups && !many) ||
        (p.when == PredicateWhen::kOneGroup && many))
      continue;
    PredicateLog entry{p.name, NameOf(p.lhs), ValueOf(p.lhs, c), p.op, p.rhs};
    if (p.rhs.kind == FactValue::Kind::kFact)
      entry.rhs = ValueOf(static_cast<Fact>(p.rhs.number), c);
    entry.value = Evaluate(entry.lhs, p.op, entry.rhs);
    entry.evaluated = open;
    if (open && !entry.value) {
      log.verdict = fmt::format("fail@{}", p.name);
      open = false;
    }
    log.predicates.push_back(entry);
  }
  return log;
}

}  // namespace

Status CheckDispatchCase(const DispatchCase& c) {
  if (!c.device.empty() && !OneOf(kDevices, c.device)) {
    return MakeError(ErrorCode::kInvalidArgument, "device: wanted one of {}, got '{}'",
                     fmt::join(kDevices, ", "), c.device);
  }
  if (!OneOf(kDtypes, c.dtype)) {
    return MakeError(ErrorCode::kInvalidArgument, "dtype: wanted one of {}, got '{}'",
                     fmt::join(kDtypes, ", "), c.dtype);
  }
  for (const auto& [name, value] : c.flags) {
    if (!OneOf(kFlags, name)) {
      return MakeError(ErrorCode::kInvalidArgument, "unknown flag '{}'; known: {}", name,
                       fmt::join(kFlags, ", "));
    }
  }
  if (c.fused_shared > 8) {
    return MakeError(ErrorCode::kInvalidArgument, "fused-shared: wanted 0..8 slots, got {}",
                     c.fused_shared);
  }
  return {};
}

bool Evaluate(const FactValue& lhs, Compare op, const FactValue& rhs) {
  switch (op) {
    case Compare::kEq:
      return lhs == rhs;
    case Compare::kNe:
      return !(lhs == rhs);
    case Compare::kLe:
      return lhs.number <= rhs.number;
    case Compare::kLt:
      return lhs.number < rhs.number;
    case Compare::kGe:
      return lhs.number >= rhs.number;
    case Compare::kGt:
      return lhs.number > rhs.number;
    case Compare::kIn:
      return InList(lhs, rhs.text);
    case Compare::kPowerOfTwo:
      return (lhs.number > 0 && std::has_single_bit(static_cast<uint64_t>(lhs.number))) ==
             (rhs.number != 0);
  }
  return false;
}

std::string_view Symbol(Compare op) {
  switch (op) {
    case Compare::kEq:
      return "==";
    case Compare::kNe:
      return "!=";
    case Compare::kLe:
      return "<=";
    case Compare::kLt:
      return "<";
    case Compare::kGe:
      return ">=";
    case Compare::kGt:
      return ">";
    case Compare::kIn:
      return "in";
    case Compare::kPowerOfTwo:
      return "is_power_of_two";
  }
  return "?";
}

FactValue ValueOf(Fact fact, const DispatchCase& c) {
  const RoutingConfig& m = c.config;
  const auto n = static_cast<int64_t>(m.num_experts), k = static_cast<int64_t>(m.top_k);
  const auto s = static_cast<int64_t>(c.fused_shared);
  const int64_t groups = GroupsOf(m), kept = KeptOf(m);
  const std::string_view device = c.device;
  switch (fact) {
    case Fact::kDevice:
      return OneOfDevices(device);
    case Fact::kDtype:
      return std::string_view(*std::find(std::begin(kDtypes), std::end(kDtypes), c.dtype));
    case Fact::kTokens:
      return Number(static_cast<int64_t>(c.tokens));
    case Fact::kExperts:
      return Number(n);
    case Fact::kTopK:
      return Number(k);
    case Fact::kShared:
      return Number(s);
    case Fact::kSlots:
      return Number(k + s);
    case Fact::kGroups:
      return Number(groups);
    case Fact::kGroupsKept:
      return Number(kept);
    case Fact::kPerGroup:
      return Number(n / groups);
    case Fact::kPerGroupTimesKept:
      return Number(n / groups * kept);
    case Fact::kGroupsTimesKept:
      return Number(groups * kept);
    case Fact::kScoring:
      return Name(m.scoring);
    case Fact::kBias:
      return m.has_bias;
    case Fact::kRenormalize:
      return m.renormalize;
    case Fact::kScaleIsOne:
      return m.scale == 1.0f;
    case Fact::kUseGrouped:
      return m.grouped();
    case Fact::kCustomFunction:
      return m.custom_function;
    case Fact::kTopkThenSoftmax:
      return m.softmax_over_selected;
    case Fact::kZeroExperts:
      return Number(static_cast<int64_t>(m.zero_experts));
    case Fact::kGroupsDivide:
      return n > groups && n % groups == 0;
    case Fact::kMethodUnspecified:
      return m.has_bias && m.scoring == GateActivation::kSigmoid && !m.renormalize;
    case Fact::kFlashinfer:
      return Flag(c, "flashinfer", device == "cuda");
    case Fact::kAiter:
      return Flag(c, "aiter", device == "hip");
    case Fact::kAmx:
      return Flag(c, "amx", device == "cpu");
    case Fact::kTorchNative:
      return Flag(c, "torch_native", false);
    case Fact::kTrtllmRouted:
      return Flag(c, "runner_trtllm_routed", false);
    case Fact::kJitGroupedTopk:
      return Flag(c, "jit_grouped_topk", false);
    case Fact::kJitFusedTopk:
      return Flag(c, "jit_fused_topk", false);
    case Fact::kFusedGroupedTopk:
      return Flag(c, "fused_grouped_topk", true);
    case Fact::kSimulation:
      return Flag(c, "simulation", false);
    case Fact::kMxfp4Routed:
      return Flag(c, "runner_mxfp4_routed", false);
    case Fact::kVectorGate: {
      auto gate = ModelGate(m);
      return gate.has_value() && HasVectorScoring(*gate);
    }
    case Fact::kIsa:
      return RowKernelTarget();
  }
  return 0;
}

std::string_view NameOf(Fact fact) {
  switch (fact) {
    case Fact::kDevice:
      return "device";
    case Fact::kDtype:
      return "dtype";
    case Fact::kTokens:
      return "T";
    case Fact::kExperts:
      return "N";
    case Fact::kTopK:
      return "k";
    case Fact::kShared:
      return "s";
    case Fact::kSlots:
      return "K";
    case Fact::kGroups:
      return "G";
    case Fact::kGroupsKept:
      return "kg";
    case Fact::kPerGroup:
      return "epg";
    case Fact::kPerGroupTimesKept:
      return "epg*kg";
    case Fact::kGroupsTimesKept:
      return "kg*G";
    case Fact::kScoring:
      return "scoring";
    case Fact::kBias:
      return "bias";
    case Fact::kRenormalize:
      return "renormalize";
    case Fact::kScaleIsOne:
      return "rsf == 1";
    case Fact::kUseGrouped:
      return "use_grouped_topk";
    case Fact::kCustomFunction:
      return "custom_routing_function";
    case Fact::kTopkThenSoftmax:
      return "softmax_after_topk";
    case Fact::kZeroExperts:
      return "zero_experts";
    case Fact::kGroupsDivide:
      return "N > G and N mod G == 0";
    case Fact::kMethodUnspecified:
      return "routing method Unspecified";
    case Fact::kFlashinfer:
      return "flashinfer importable";
    case Fact::kAiter:
      return "aiter enabled";
    case Fact::kAmx:
      return "cpu has AMX";
    case Fact::kTorchNative:
      return "torch_native";
    case Fact::kTrtllmRouted:
      return "runner flashinfer_trtllm_routed";
    case Fact::kJitGroupedTopk:
      return "SGLANG_OPT_USE_JIT_KERNEL_GROUPED_TOPK";
    case Fact::kJitFusedTopk:
      return "SGLANG_OPT_USE_JIT_KERNEL_FUSED_TOPK";
    case Fact::kFusedGroupedTopk:
      return "VLLM_USE_FUSED_MOE_GROUPED_TOPK";
    case Fact::kSimulation:
      return "routing simulation";
    case Fact::kMxfp4Routed:
      return "runner flashinfer_mxfp4";
    case Fact::kVectorGate:
      return "gate has a vector path";
    case Fact::kIsa:
      return "SIMD target";
  }
  return "?";
}

Result<const DispatchProfile*> FindDispatchProfile(std::string_view name) {
  std::string known;
  for (const DispatchProfile* p : AllDispatchProfiles()) {
    if (p->name == name) return p;
    if (!known.empty()) known += ", ";
    known += p->name;
  }
  return MakeError(ErrorCode::kInvalidArgument, "unknown dispatch profile '{}'; known: {}", name,
                   known);
}

DispatchLog Dispatch(const DispatchProfile& profile, const DispatchCase& given) {
  DispatchCase c = given;
  if (c.device.empty()) c.device = profile.default_device;
  DispatchLog log;
  log.profile = &profile;
  for (const std::string_view note : profile.notes) {
    if (!note.empty()) log.notes.emplace_back(note);
  }
  const DispatchTable* table = &profile.tables[0];
  while (table != nullptr) {
    TableLog entry{table->name, {}};
    const DispatchRule* matched = nullptr;
    for (const DispatchRule& rule : table->rules) {
      entry.rules.push_back(LogRule(rule, c, matched == nullptr));
      if (entry.rules.back().verdict == "match") matched = &rule;
    }
    log.tables.push_back(std::move(entry));
    CARPOOL_CHECK(matched != nullptr);  // every table ends with a rule without predicates
    table = nullptr;
    if (!matched->next.empty()) {
      for (const DispatchTable& t : profile.tables) {
        if (t.name == matched->next) table = &t;
      }
      CARPOOL_CHECK(table != nullptr);
    }
    log.kernel = matched->kernel;
    log.rule = matched->rule;
    log.function = matched->function;
  }
  return log;
}

}  // namespace carpool
