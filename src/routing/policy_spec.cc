#include "routing/policy_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace carpool {
namespace {

template <typename... Args>
Error Bad(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

constexpr double kAutoMaxKl = 0.01;
constexpr size_t kMaxListBytes = size_t{1} << 20;

struct Pair {
  std::string_view key;
  std::string_view value;
};

Result<std::vector<Pair>> SplitPairs(std::string_view policy, std::string_view text) {
  std::vector<Pair> pairs;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      return Bad("policy '{}': wanted key=value, got '{}'", policy, item);
    }
    const Pair pair{item.substr(0, equals), item.substr(equals + 1)};
    for (const Pair& p : pairs) {
      if (p.key == pair.key) return Bad("policy '{}': '{}' is given twice", policy, pair.key);
    }
    pairs.push_back(pair);
    if (comma == std::string_view::npos) return pairs;
    text.remove_prefix(comma + 1);
  }
}

bool ParseNumber(std::string_view text, double& value) {
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  return ec == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

Status CheckNumber(std::string_view policy, const KnobInfo& knob, double value,
                   const std::string& where) {
  if (value < knob.low || value > knob.high || (knob.integer && value != std::floor(value))) {
    return Bad("policy '{}': {}{} wants {} {}..{}, got {}", policy, knob.name, where,
               knob.integer ? "a whole number" : "a number", knob.low, knob.high, value);
  }
  return {};
}

Result<std::vector<double>> ReadList(std::string_view policy, const KnobInfo& knob,
                                     const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return MakeError(ErrorCode::kNotFound, "policy '{}': {}=@{}: cannot read that file", policy,
                     knob.name, path);
  }
  std::string text(kMaxListBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (text.size() > kMaxListBytes || !json.is_array() || json.empty()) {
    return Bad("policy '{}': {}=@{}: wanted a JSON array with one number per MoE layer", policy,
               knob.name, path);
  }
  std::vector<double> values;
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_number()) {
      return Bad("policy '{}': {}=@{}: [{}] is not a number", policy, knob.name, path, i);
    }
    values.push_back(json[i].get<double>());
    RETURN_IF_ERROR(CheckNumber(policy, knob, values.back(), fmt::format(" (@{}, [{}])", path, i)));
  }
  return values;
}

/// "3", or one number per MoE layer as "3/4/5".
Result<std::vector<double>> ReadNumbers(std::string_view policy, const KnobInfo& knob,
                                        std::string_view text) {
  std::vector<double> values;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('/', start), text.size());
    double value = 0;
    if (!ParseNumber(text.substr(start, end - start), value)) {
      return Bad("policy '{}': {} wants a number, one per MoE layer as 3/4/5, or @FILE, got '{}'",
                 policy, knob.name, text);
    }
    RETURN_IF_ERROR(CheckNumber(policy, knob, value, ""));
    values.push_back(value);
    start = end + 1;
  }
  return values;
}

std::string KnownKeys(const PolicyKind& kind) {
  std::string keys;
  auto add = [&](std::string_view key) {
    if (!keys.empty()) keys += ", ";
    keys += key;
  };
  for (const KnobInfo& k : kind.knobs) add(k.name);
  if (kind.batch_coupled) add("min_rows, ride");
  if (kind.takes_mass) add("mass");
  return keys.empty() ? "none" : keys;
}

constexpr KnobInfo kMinRows{"min_rows", "", false, true, 1, 1e6};

/// True when the key is one of the shared options.
Result<bool> ParseOption(const PolicyKind& kind, const Pair& pair, PolicySpec& spec) {
  double value = 0;
  if (kind.batch_coupled && pair.key == "min_rows") {
    if (!ParseNumber(pair.value, value)) {
      return Bad("policy '{}': min_rows wants a whole number, got '{}'", kind.name, pair.value);
    }
    RETURN_IF_ERROR(CheckNumber(kind.name, kMinRows, value, ""));
    spec.min_rows = static_cast<size_t>(value);
    return true;
  }
  if (kind.batch_coupled && pair.key == "ride") {
    if (pair.value != "0" && pair.value != "1") {
      return Bad("policy '{}': ride wants 0 or 1, got '{}'", kind.name, pair.value);
    }
    spec.ride = pair.value == "1";
    return true;
  }
  if (kind.takes_mass && pair.key == "mass") {
    if (pair.value != "gate" && pair.value != "keep") {
      return Bad("policy '{}': mass wants gate or keep, got '{}'", kind.name, pair.value);
    }
    spec.keep_mass = pair.value == "keep";
    return true;
  }
  return false;
}

Status ParseKnob(const PolicyKind& kind, const Pair& pair, PolicySpec& spec) {
  const auto info = std::find_if(kind.knobs.begin(), kind.knobs.end(),
                                 [&](const KnobInfo& k) { return k.name == pair.key; });
  if (info == kind.knobs.end()) {
    return Bad("policy '{}': unknown key '{}'; known: {}", kind.name, pair.key, KnownKeys(kind));
  }
  KnobValue knob{info->name, {}, std::string(pair.value), false};
  if (pair.value.front() == '@') {
    ASSIGN_OR_RETURN(knob.values, ReadList(kind.name, *info, std::string(pair.value.substr(1))));
    knob.per_layer = true;
  } else {
    ASSIGN_OR_RETURN(knob.values, ReadNumbers(kind.name, *info, pair.value));
    knob.per_layer = knob.values.size() > 1;
  }
  spec.knobs.push_back(std::move(knob));
  return {};
}

}  // namespace

const KnobValue* PolicySpec::Find(std::string_view name) const {
  for (const KnobValue& k : knobs) {
    if (k.name == name) return &k;
  }
  return nullptr;
}

Result<std::optional<double>> ParseAutoPolicy(std::string_view text) {
  const size_t colon = text.find(':');
  if (text.substr(0, colon) != "auto") return std::optional<double>();
  double max_kl = kAutoMaxKl;
  if (colon != std::string_view::npos) {
    ASSIGN_OR_RETURN(const auto pairs, SplitPairs("auto", text.substr(colon + 1)));
    for (const Pair& p : pairs) {
      if (p.key != "max_kl") return Bad("policy 'auto': unknown key '{}'; known: max_kl", p.key);
      if (!ParseNumber(p.value, max_kl) || max_kl <= 0) {
        return Bad("policy 'auto': max_kl wants a number > 0, got '{}'", p.value);
      }
    }
  }
  return std::optional<double>(max_kl);
}

Result<std::shared_ptr<const PolicySpec>> ParsePolicy(std::string_view text) {
  ASSIGN_OR_RETURN(const auto automatic, ParseAutoPolicy(text));
  if (automatic.has_value()) {
    return MakeError(ErrorCode::kUnsupported,
                     "policy 'auto' needs a calibration and this command has none; run `carpool "
                     "sweep` and pass the "
                     "policy it recommends");
  }
  const size_t colon = text.find(':');
  std::string_view name = text.substr(0, colon);
  if (name == "exact") name = "vanilla";
  const PolicyKind* kind = nullptr;
  for (const PolicyKind* k : AllPolicies()) {
    if (k->name == name) kind = k;
  }
  if (kind == nullptr) return Bad("unknown routing policy '{}'; known: {}", name, PolicyNames());
  auto spec = std::make_shared<PolicySpec>();
  spec->kind = kind;
  if (colon != std::string_view::npos) {
    ASSIGN_OR_RETURN(const auto pairs, SplitPairs(name, text.substr(colon + 1)));
    for (const Pair& pair : pairs) {
      ASSIGN_OR_RETURN(const bool option, ParseOption(*kind, pair, *spec));
      if (!option) RETURN_IF_ERROR(ParseKnob(*kind, pair, *spec));
    }
  }
  std::vector<KnobValue> ordered;
  for (const KnobInfo& info : kind->knobs) {
    if (const KnobValue* given = spec->Find(info.name)) {
      ordered.push_back(*given);
    } else if (info.required) {
      return Bad("policy '{}' wants {}=… ({})", name, info.name, info.help);
    }
  }
  spec->knobs = std::move(ordered);
  return std::shared_ptr<const PolicySpec>(std::move(spec));
}

std::string PolicyText(const PolicySpec& spec) {
  std::string text(spec.kind->name);
  char separator = ':';
  auto add = [&](std::string_view key, std::string_view value) {
    text += separator;
    text += key;
    text += '=';
    text += value;
    separator = ',';
  };
  for (const KnobValue& k : spec.knobs) {
    add(k.name, k.text.front() == '@' ? k.text : fmt::format("{}", fmt::join(k.values, "/")));
  }
  if (spec.min_rows != 1) add("min_rows", fmt::format("{}", spec.min_rows));
  if (!spec.ride) add("ride", "0");
  if (spec.keep_mass) add("mass", "keep");
  return text;
}

Result<std::shared_ptr<const PolicySpec>> PolicyFromEnvironment() {
  auto set = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    const std::string_view text = value == nullptr ? "" : value;
    return text == "0" ? "" : text;
  };
  auto named = [](const char* name, Result<std::shared_ptr<const PolicySpec>> result) {
    if (result) return result;
    Error error = std::move(result).error();
    error.message = fmt::format("{}: {}", name, error.message);
    return Result<std::shared_ptr<const PolicySpec>>(std::move(error));
  };
  if (const auto text = set("CARPOOL_ROUTING"); !text.empty())
    return named("CARPOOL_ROUTING", ParsePolicy(text));
  for (const char* name : {"CARPOOL_OEA_K0", "SGLANG_OEA_K0"}) {
    const auto text = set(name);
    if (text.empty()) continue;
    if (text.find_first_not_of("0123456789") != std::string_view::npos) {
      return Bad("{}: wanted a whole number (0 = off), got '{}'", name, text);
    }
    if (text.find_first_not_of('0') == std::string_view::npos) continue;
    return named(name, ParsePolicy(fmt::format("oea:k0={}", text)));
  }
  return ParsePolicy("vanilla");
}

namespace {

template <typename T>
Result<std::vector<T>> Values(const PolicySetup& setup, std::string_view name, T fallback,
                              double low, double high) {
  const KnobValue* knob = setup.spec.Find(name);
  if (knob == nullptr) return std::vector<T>(setup.layers, fallback);
  const bool list = knob->per_layer;
  if (list && knob->values.size() != setup.layers) {
    return Bad("policy '{}': {}={} has {} numbers; this model has {} MoE layers",
               setup.spec.kind->name, name, knob->text, knob->values.size(), setup.layers);
  }
  std::vector<T> out;
  for (size_t l = 0; l < setup.layers; ++l) {
    const double value = knob->values[list ? l : 0];
    if (value < low || value > high) {
      return Bad("policy '{}': {}{} wants {}..{} for this model (top-{} of {} experts), got {}",
                 setup.spec.kind->name, name, list ? fmt::format(" of layer {}", l) : "", low, high,
                 setup.gate.top_k, setup.gate.num_experts, value);
    }
    out.push_back(static_cast<T>(value));
  }
  return out;
}

}  // namespace

Result<std::vector<size_t>> PolicySetup::Integers(std::string_view name, size_t fallback,
                                                  size_t low, size_t high) const {
  return Values<size_t>(*this, name, fallback, static_cast<double>(low), static_cast<double>(high));
}
Result<std::vector<double>> PolicySetup::Numbers(std::string_view name, double fallback, double low,
                                                 double high) const {
  return Values<double>(*this, name, fallback, low, high);
}

}  // namespace carpool
