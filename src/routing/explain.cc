#include "routing/explain.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const FactValue& value) {
  switch (value.kind) {
    case FactValue::Kind::kBool:
      return value.number != 0;
    case FactValue::Kind::kText:
      return std::string(value.text);
    case FactValue::Kind::kNumber:
    case FactValue::Kind::kFact:
      break;
  }
  return value.number;
}

std::string ToText(const FactValue& value) {
  if (value.kind == FactValue::Kind::kBool) return value.number != 0 ? "true" : "false";
  if (value.kind == FactValue::Kind::kText) return std::string(value.text);
  return fmt::format("{}", value.number);
}

OrderedJson RulesJson(const TableLog& table) {
  OrderedJson rules = OrderedJson::array();
  for (const RuleLog& rule : table.rules) {
    OrderedJson predicates = OrderedJson::array();
    for (const PredicateLog& p : rule.predicates) {
      OrderedJson rhs = ToJson(p.rhs);
      if (p.op == Compare::kIn) {
        rhs = OrderedJson::array();
        std::string_view list = p.rhs.text;
        while (true) {
          const size_t comma = list.find(',');
          const std::string item(list.substr(0, comma));
          rhs.push_back(p.lhs.kind == FactValue::Kind::kText ? OrderedJson(item)
                                                             : OrderedJson(std::stoll(item)));
          if (comma == std::string_view::npos) break;
          list.remove_prefix(comma + 1);
        }
      }
      predicates.push_back({{"name", p.name},
                            {"fact", p.lhs_name},
                            {"lhs", ToJson(p.lhs)},
                            {"op", Symbol(p.op)},
                            {"rhs", std::move(rhs)},
                            {"value", p.value},
                            {"evaluated", p.evaluated}});
    }
    rules.push_back({{"rule", rule.rule},
                     {"kernel", rule.kernel},
                     {"verdict", rule.verdict},
                     {"predicates", std::move(predicates)}});
  }
  return rules;
}

OrderedJson ConfigJson(const DispatchCase& c, const DispatchProfile& profile) {
  const RoutingConfig& m = c.config;
  const size_t groups = m.grouped() ? m.num_groups : 1;
  OrderedJson config;
  config["model"] = m.model;
  config["N"] = m.num_experts;
  config["G"] = m.num_groups;
  config["kg"] = m.groups_kept;
  config["epg"] = m.num_experts / groups;
  config["k"] = m.top_k;
  config["s"] = c.fused_shared;
  config["K"] = m.top_k + c.fused_shared;
  config["scoring"] = Name(m.scoring);
  config["bias"] = m.has_bias;
  config["renormalize"] = m.renormalize;
  if (m.scale_known) {
    config["routed_scaling_factor"] = m.scale;
  } else {
    config["routed_scaling_factor"] = nullptr;
  }
  config["shared_experts"] = m.num_shared;
  config["device"] = c.device.empty() ? std::string(profile.default_device) : c.device;
  config["dtype"] = c.dtype;
  config["tokens"] = c.tokens;
  OrderedJson flags = OrderedJson::object();
  for (const auto& [name, value] : c.flags) flags[name] = value;
  config["flags"] = std::move(flags);
  return config;
}

/// What the chosen function computes for this config; null when none of the known functions says.
OrderedJson NumericsJson(const DispatchLog& log, const DispatchCase& c) {
  if (log.function.empty()) return nullptr;
  auto function = FindGateFunction(log.function);
  GateCall call;
  call.num_experts = c.config.num_experts;
  call.top_k = c.config.top_k;
  if (c.config.grouped()) {
    call.num_groups = c.config.num_groups;
    call.groups_kept = c.config.groups_kept;
  }
  call.scoring = c.config.scoring;
  call.has_bias = c.config.has_bias;
  call.renormalize = c.config.renormalize;
  call.scale = c.config.scale;
  call.fused_shared = c.fused_shared;
  call.logit_number = c.dtype == "bf16"   ? GateNumber::kBF16
                      : c.dtype == "fp16" ? GateNumber::kF16
                                          : GateNumber::kF32;
  auto gate = MakeGate(**function, call);
  if (!gate) return {{"function", (*function)->id}, {"error", gate.error().message}};
  OrderedJson n;
  n["function"] = (*function)->id;
  n["name"] = (*function)->name;
  n["activation"] = Name(gate->activation);
  n["choice"] = Name(gate->choice);
  n["score_dtype"] = Name(gate->score_number);
  n["choice_dtype"] = Name(gate->choice_number);
  n["group_score"] = Name(gate->group_score);
  n["mask"] = Name(gate->group_mask);
  n["order"] = Name(gate->order);
  n["slots"] = Name(gate->slot_order);
  n["weights"] = Name(gate->weight_source);
  n["renormalize"] = Name(gate->renormalize);
  n["divisor"] = Name(gate->divisor);
  n["epsilon"] = static_cast<double>(gate->renorm_epsilon);
  n["scale"] = Name(gate->scale_place);
  if (!(*function)->note.empty()) n["note"] = (*function)->note;
  return n;
}

/// Kernels that choose a variant of themselves by row or expert count, behind the rules.
std::string VariantNote(std::string_view kernel, const DispatchCase& c) {
  const size_t n = c.config.num_experts;
  if (kernel == "kimi_k2_moe_fused_gate") {
    return fmt::format("at {} rows it runs its {} variant (small up to 512 rows)", c.tokens,
                       c.tokens <= 512 ? "small" : "large");
  }
  if (kernel == "topk_softmax") {
    const bool one_warp = std::has_single_bit(n) && n <= 256;
    return fmt::format(
        "with {} experts it runs its {} variant (one warp for powers of two up to 256)", n,
        one_warp ? "one-warp" : "workspace");
  }
  return {};
}

std::vector<std::string> Notes(const DispatchLog& log, const DispatchCase& c) {
  std::vector<std::string> notes = log.notes;
  if (!c.config.scale_known)
    notes.emplace_back("the model's routed_scaling_factor is not published; 1 is assumed");
  if (std::string variant = VariantNote(log.kernel, c); !variant.empty())
    notes.push_back(std::move(variant));
  for (const ModelPreset& p : AllModelPresets()) {
    if (p.name == c.config.model)
      notes.push_back(fmt::format("preset {}: evidence {}", p.name, p.evidence));
  }
  const auto* last = &log.tables.back();
  for (const RuleLog& rule : last->rules) {
    if (rule.verdict.rfind("fail@", 0) != 0) continue;
    const auto name = std::string_view(rule.verdict).substr(5);
    for (const PredicateLog& p : rule.predicates) {
      if (p.name == name && rule.rule == "R1") {
        notes.push_back(fmt::format("R1 stops at {}: {} {} {} is false", p.name, ToText(p.lhs),
                                    Symbol(p.op), ToText(p.rhs)));
      }
    }
  }
  return notes;
}

OrderedJson LogJson(const DispatchLog& log, const DispatchCase& c) {
  OrderedJson out;
  out["profile"] = log.profile->name;
  out["label"] = log.profile->label;
  out["kernel"] = log.kernel;
  out["rule"] = log.rule;
  out["rules"] = RulesJson(log.tables.back());
  OrderedJson entry = OrderedJson::array();
  for (size_t t = 0; t + 1 < log.tables.size(); ++t) {
    entry.push_back({{"table", log.tables[t].table}, {"rules", RulesJson(log.tables[t])}});
  }
  out["table"] = log.tables.back().table;
  out["entry"] = std::move(entry);
  out["config"] = ConfigJson(c, *log.profile);
  out["numerics"] = NumericsJson(log, c);
  out["notes"] = Notes(log, c);
  return out;
}

std::string PredicateText(const PredicateLog& p) {
  if (p.op == Compare::kPowerOfTwo) {
    return fmt::format("{}: {} = {} is {}a power of two", p.name, p.lhs_name, ToText(p.lhs),
                       p.value ? "" : "not ");
  }
  return fmt::format("{}: {} = {} {} {}", p.name, p.lhs_name, ToText(p.lhs), Symbol(p.op),
                     ToText(p.rhs));
}

std::string TableText(const TableLog& table) {
  std::string text = fmt::format("{}\n", table.table);
  for (const RuleLog& rule : table.rules) {
    text += fmt::format("  {:<4} {:<34} {}\n", rule.rule,
                        rule.next ? fmt::format("-> {}", rule.kernel) : std::string(rule.kernel),
                        rule.verdict);
    if (rule.verdict == "skipped") continue;
    for (const PredicateLog& p : rule.predicates) {
      const char* mark = !p.evaluated ? "(not evaluated)" : p.value ? "true" : "FALSE";
      text += fmt::format("         {:<52} {}\n", PredicateText(p), mark);
    }
  }
  return text;
}

/// One place at which two logs differ.
struct Parting {
  std::string table, rule, what, a, b;
};

/// How a rule ended, with the predicate that stopped it.
std::string Ending(const RuleLog& rule) {
  const std::string_view verdict = rule.verdict;
  for (const PredicateLog& p : rule.predicates) {
    if (verdict.starts_with("fail@") && verdict.substr(5) == p.name)
      return "fails at " + PredicateText(p);
  }
  return verdict == "match" ? fmt::format("matches -> {}", rule.kernel)
                            : std::string("is not reached");
}

const RuleLog* FindRule(const TableLog& table, const RuleLog& like, size_t nth) {
  for (const RuleLog& rule : table.rules) {
    if (rule.rule == like.rule && nth-- == 0) return &rule;
  }
  return nullptr;
}

/// Rule by rule of the tables that chose the kernels; when those are different tables, that is the
/// difference.
std::vector<Parting> FindPartings(const DispatchLog& a, const DispatchLog& b) {
  const TableLog &ta = a.tables.back(), &tb = b.tables.back();
  if (ta.table != tb.table) {
    return {{"", "", "table", std::string(ta.table), std::string(tb.table)}};
  }
  std::vector<Parting> out;
  auto compare = [&](const RuleLog* left, const RuleLog* right, std::string_view name) {
    auto add = [&](const char* what, std::string l, std::string r) {
      out.push_back({std::string(ta.table), std::string(name), what, std::move(l), std::move(r)});
    };
    if (left == nullptr || right == nullptr) {
      return add("rule", left == nullptr ? "has no such rule" : Ending(*left),
                 right == nullptr ? "has no such rule" : Ending(*right));
    }
    if (Ending(*left) != Ending(*right)) return add("verdict", Ending(*left), Ending(*right));
    auto list = [](const RuleLog& rule) {
      std::string names;
      for (const PredicateLog& p : rule.predicates)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", p.name);
      return names.empty() ? std::string("(always)") : names;
    };
    if (list(*left) != list(*right)) add("predicates", list(*left), list(*right));
  };
  auto nth_of = [](const TableLog& table, const RuleLog& rule) {
    size_t n = 0;
    for (const RuleLog& r : table.rules) {
      if (&r == &rule) break;
      n += r.rule == rule.rule;
    }
    return n;
  };
  for (const RuleLog& rule : ta.rules)
    compare(&rule, FindRule(tb, rule, nth_of(ta, rule)), rule.rule);
  for (const RuleLog& rule : tb.rules) {
    if (FindRule(ta, rule, nth_of(tb, rule)) == nullptr) compare(nullptr, &rule, rule.rule);
  }
  return out;
}

struct AllRow {
  std::string model;
  std::string_view evidence;
  std::vector<std::string> kernels;
};

std::vector<AllRow> AllRows(const DispatchCase& base) {
  std::vector<AllRow> rows;
  for (const ModelPreset& preset : AllModelPresets()) {
    // One shared expert and a biased grouped gate: the family that can carry it as one more slot.
    const bool can_fuse = preset.groups > 0 && preset.bias && preset.shared == 1;
    for (size_t fused = 0; fused <= (can_fuse ? 1u : 0u); ++fused) {
      DispatchCase c = base;
      c.config = ToConfig(preset);
      c.fused_shared = fused;
      AllRow row{std::string(preset.name) + (fused != 0 ? " (fused)" : ""), preset.evidence, {}};
      for (const DispatchProfile* profile : AllDispatchProfiles())
        row.kernels.emplace_back(Dispatch(*profile, c).kernel);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace

std::string ExplainJson(const DispatchLog& log, const DispatchCase& c) {
  return LogJson(log, c).dump(2);
}

std::string ExplainText(const DispatchLog& log, const DispatchCase& c) {
  const RoutingConfig& m = c.config;
  std::string text = fmt::format("{} on {} ({})\n", m.model, log.profile->name, log.profile->label);
  text += fmt::format(
      "{} experts, top-{}, {}, {}{}{}, {} fused shared slots\n\n", m.num_experts, m.top_k,
      m.grouped() ? fmt::format("{} groups (keep {})", m.num_groups, m.groups_kept) : "no groups",
      Name(m.scoring), m.has_bias ? " + bias" : "", m.renormalize ? ", renormalised" : "",
      c.fused_shared);
  for (const TableLog& table : log.tables) text += TableText(table);
  text += fmt::format("\nkernel: {}\n", log.kernel);
  const OrderedJson numerics = NumericsJson(log, c);
  if (numerics.is_object() && !numerics.contains("error")) {
    text += fmt::format(
        "computes {}: {} scores in {}, choice {}, group score {}, mask {}, divisor {}, scale {}\n",
        numerics["function"].get<std::string>(), numerics["activation"].get<std::string>(),
        numerics["score_dtype"].get<std::string>(), numerics["choice"].get<std::string>(),
        numerics["group_score"].get<std::string>(), numerics["mask"].get<std::string>(),
        numerics["divisor"].get<std::string>(), numerics["scale"].get<std::string>());
  }
  for (const std::string& note : Notes(log, c)) text += fmt::format("note: {}\n", note);
  return text;
}

std::string DiffJson(const DispatchLog& a, const DispatchLog& b, const DispatchCase& c) {
  OrderedJson out;
  out["profiles"] = {a.profile->name, b.profile->name};
  out["kernels"] = {a.kernel, b.kernel};
  out["same_kernel"] = a.kernel == b.kernel;
  OrderedJson differences = OrderedJson::array();
  for (const Parting& p : FindPartings(a, b)) {
    differences.push_back(
        {{"table", p.table}, {"rule", p.rule}, {"what", p.what}, {"a", p.a}, {"b", p.b}});
  }
  out["first_difference"] = differences.empty() ? OrderedJson(nullptr) : differences[0];
  out["differences"] = std::move(differences);
  out["a"] = LogJson(a, c);
  out["b"] = LogJson(b, c);
  return out.dump(2);
}

std::string DiffText(const DispatchLog& a, const DispatchLog& b, const DispatchCase& c) {
  const std::vector<Parting> partings = FindPartings(a, b);
  std::string text = c.config.model + "\n";
  const size_t width = std::max(a.profile->name.size(), b.profile->name.size());
  for (const DispatchLog* log : {&a, &b})
    text += fmt::format("  {:<{}}  {}\n", log->profile->name, width, log->kernel);
  if (partings.empty()) return text + "every rule, predicate and verdict is the same\n";
  text += "they part at\n";
  for (const Parting& p : partings) {
    text += fmt::format("  {} ({})\n    {:<{}}  {}\n    {:<{}}  {}\n",
                        p.rule.empty() ? "entry" : p.rule, p.what, a.profile->name, width, p.a,
                        b.profile->name, width, p.b);
  }
  return text + (a.kernel == b.kernel ? "same final kernel\n" : "different kernels\n");
}

std::string ExplainAllJson(const DispatchCase& base) {
  OrderedJson profiles = OrderedJson::array(), rows = OrderedJson::array();
  for (const DispatchProfile* profile : AllDispatchProfiles()) profiles.push_back(profile->name);
  for (const AllRow& row : AllRows(base)) {
    OrderedJson kernels;
    for (size_t p = 0; p < row.kernels.size(); ++p)
      kernels[std::string(AllDispatchProfiles()[p]->name)] = row.kernels[p];
    rows.push_back(
        {{"preset", row.model}, {"evidence", row.evidence}, {"kernels", std::move(kernels)}});
  }
  return OrderedJson{{"profiles", std::move(profiles)}, {"rows", std::move(rows)}}.dump(2);
}

std::string ExplainAllText(const DispatchCase& base) {
  std::vector<std::vector<std::string>> cells(1);
  cells[0] = {"model", "evidence"};
  for (const DispatchProfile* profile : AllDispatchProfiles()) cells[0].emplace_back(profile->name);
  for (const AllRow& row : AllRows(base)) {
    cells.push_back({row.model, std::string(row.evidence)});
    cells.back().insert(cells.back().end(), row.kernels.begin(), row.kernels.end());
  }
  std::vector<size_t> width(cells[0].size());
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i)
      text += fmt::format("{:<{}}{}", row[i], width[i], i + 1 < row.size() ? "  " : "\n");
  }
  return text;
}

}  // namespace carpool
