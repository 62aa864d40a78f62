#include "routing/route_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "routing/gate_functions.h"
#include "routing/policy_spec.h"
#include "routing/replay.h"
#include "routing/routing_config.h"

namespace carpool {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxRows = 65536;

template <typename... Args>
Error Bad(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

bool ToFloat(const Json& value, float& out) {
  if (value.is_number()) {
    out = static_cast<float>(value.get<double>());
    return true;
  }
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "NaN" || text == "nan")
    out = __builtin_nanf("");
  else if (text == "inf" || text == "+inf")
    out = __builtin_inff();
  else if (text == "-inf")
    out = -__builtin_inff();
  else
    return false;
  return true;
}

Status ReadFloats(const Json& array, const std::string& where, size_t n, std::vector<float>& out) {
  if (!array.is_array() || array.size() != n) {
    return Bad("{}: wanted an array of {} numbers (num_experts), got {}", where, n,
               array.is_array() ? fmt::format("{} of them", array.size())
                                : std::string(array.type_name()));
  }
  for (size_t i = 0; i < n; ++i) {
    float value = 0;
    if (!ToFloat(array[i], value)) {
      return Bad("{}[{}]: wanted a number (or \"NaN\", \"inf\", \"-inf\"), got {}", where, i,
                 array[i].type_name());
    }
    out.push_back(value);
  }
  return {};
}

Result<bool> ReadBool(const Json& object, const char* key, const std::string& where,
                      bool fallback) {
  const auto i = object.find(key);
  if (i == object.end() || i->is_null()) return fallback;
  if (!i->is_boolean())
    return Bad("{}.{}: wanted true or false, got {}", where, key, i->type_name());
  return i->get<bool>();
}
Result<size_t> ReadSize(const Json& object, const char* key, const std::string& where,
                        size_t fallback, size_t high) {
  const auto i = object.find(key);
  if (i == object.end() || i->is_null()) return fallback;
  if (!i->is_number_integer() || i->get<double>() < 0 ||
      i->get<double>() > static_cast<double>(high)) {
    return Bad("{}.{}: wanted a whole number 0..{}, got {}", where, key, high, i->dump());
  }
  return i->get<size_t>();
}
Result<std::string> ReadText(const Json& object, const char* key, const std::string& where,
                             const char* fallback) {
  const auto i = object.find(key);
  if (i == object.end() || i->is_null()) return std::string(fallback);
  if (!i->is_string()) return Bad("{}.{}: wanted a string, got {}", where, key, i->type_name());
  return i->get<std::string>();
}

Result<GateSpec> ReadGate(const Json& config, const std::string& where, bool has_bias) {
  RoutingConfig model;
  ASSIGN_OR_RETURN(const std::string preset, ReadText(config, "preset", where, ""));
  if (!preset.empty()) {
    auto known = PresetConfig(preset);
    if (!known) return Bad("{}.preset: {}", where, known.error().message);
    model = *std::move(known);
  } else {
    ASSIGN_OR_RETURN(
        model,
        ParseRoutingConfig(config.dump(-1, ' ', false, Json::error_handler_t::replace), where));
  }
  ASSIGN_OR_RETURN(const std::string dtype, ReadText(config, "logits_dtype", where, "fp32"));
  if (dtype != "fp32" && dtype != "bf16" && dtype != "fp16") {
    return Bad("{}.logits_dtype: wanted fp32, bf16 or fp16, got '{}'", where, dtype);
  }
  ASSIGN_OR_RETURN(const std::string name, ReadText(config, "function", where, ""));
  if (name.empty()) {
    if (dtype != "fp32") {
      return Bad("{}.logits_dtype: '{}' is for one routing function; name it in {}.function", where,
                 dtype, where);
    }
    ASSIGN_OR_RETURN(GateSpec gate, ModelGate(model));
    gate.has_bias = has_bias;
    ASSIGN_OR_RETURN(gate.fused_shared, ReadSize(config, "fused_shared", where, 0, 64));
    if (auto valid = ValidateGate(gate); !valid) return Bad("{}: {}", where, valid.error().message);
    return gate;
  }
  auto function = FindGateFunction(name);
  if (!function) return Bad("{}.function: {}", where, function.error().message);
  GateCall call;
  call.num_experts = model.num_experts;
  call.top_k = model.top_k;
  if (model.grouped()) {
    call.num_groups = model.num_groups;
    call.groups_kept = model.groups_kept;
  }
  call.scoring = model.scoring;
  call.has_bias = has_bias;
  call.renormalize = model.renormalize;
  call.scale = model.scale;
  ASSIGN_OR_RETURN(call.apply_scale, ReadBool(config, "apply", where, false));
  ASSIGN_OR_RETURN(call.fused_shared, ReadSize(config, "fused_shared", where, 0, 64));
  call.logit_number = dtype == "bf16"   ? GateNumber::kBF16
                      : dtype == "fp16" ? GateNumber::kF16
                                        : GateNumber::kF32;
  auto gate = MakeGate(**function, call);
  if (!gate) return Bad("{}: {}", where, gate.error().message);
  return *gate;
}

Result<RowInfo> ReadRowInfo(const Json& object, const std::string& where) {
  if (!object.is_object())
    return Bad("{}: wanted an object {{phase, exact, valid}}, got {}", where, object.type_name());
  RowInfo row;
  for (const auto& [key, value] : object.items()) {
    if (key != "phase" && key != "exact" && key != "valid" && key != "k0" && key != "kmax" &&
        key != "p") {
      return Bad("{}: unknown key '{}'; known: phase, exact, valid, k0, kmax, p", where, key);
    }
  }
  ASSIGN_OR_RETURN(const std::string phase, ReadText(object, "phase", where, "decode"));
  if (phase != "decode" && phase != "prefill")
    return Bad("{}.phase: wanted decode or prefill, got '{}'", where, phase);
  row.phase = phase == "decode" ? RowPhase::kDecode : RowPhase::kPrefill;
  ASSIGN_OR_RETURN(row.exact, ReadBool(object, "exact", where, false));
  ASSIGN_OR_RETURN(row.valid, ReadBool(object, "valid", where, true));
  ASSIGN_OR_RETURN(const size_t k0, ReadSize(object, "k0", where, 0, 65535));
  ASSIGN_OR_RETURN(const size_t kmax, ReadSize(object, "kmax", where, 0, 65535));
  row.k0 = static_cast<uint16_t>(k0);
  row.kmax = static_cast<uint16_t>(kmax);
  if (const auto p = object.find("p"); p != object.end() && !p->is_null()) {
    if (!p->is_number() || p->get<double>() <= 0 || p->get<double>() > 1)
      return Bad("{}.p: wanted a number in (0, 1]", where);
    row.p = p->get<float>();
  }
  return row;
}

Status ReadLogits(const Json& json, RouteInput& input) {
  const auto logits = json.find("logits");
  if (logits == json.end() || !logits->is_array())
    return Bad("logits: wanted an array of rows, each with num_experts numbers");
  const size_t n = input.gate.num_experts;
  if (logits->size() > kMaxRows)
    return Bad("logits: wanted at most {} rows, got {}", kMaxRows, logits->size());
  input.logits.reserve(logits->size() * n);
  for (size_t r = 0; r < logits->size(); ++r) {
    RETURN_IF_ERROR(ReadFloats((*logits)[r], fmt::format("logits[{}]", r), n, input.logits));
  }
  const auto rows = json.find("rows");
  if (rows == json.end() || rows->is_null()) {
    input.rows.resize(logits->size());
    return {};
  }
  if (!rows->is_array() || rows->size() != logits->size()) {
    return Bad("rows: wanted an array of {} rows (as many as logits), got {}", logits->size(),
               rows->is_array() ? fmt::format("{}", rows->size()) : std::string(rows->type_name()));
  }
  for (size_t r = 0; r < rows->size(); ++r) {
    ASSIGN_OR_RETURN(const RowInfo row, ReadRowInfo((*rows)[r], fmt::format("rows[{}]", r)));
    input.rows.push_back(row);
  }
  return {};
}

OrderedJson Number(float value) {
  if (std::isfinite(value)) return value;
  return value != value ? "NaN" : value > 0 ? "inf" : "-inf";
}

struct Routed {
  std::unique_ptr<Router> router;
  RoutedStep step;
};

Result<Routed> Run(const RouteInput& input, const RouteOptions& options) {
  const size_t rows = std::max<size_t>(input.rows.size(), 1);
  Routed out;
  if (options.replay.empty()) {
    ASSIGN_OR_RETURN(out.router, Router::Make(input.gate, options.policy, 1, rows));
  } else {
    ASSIGN_OR_RETURN(RecordedStep recorded, ReadRecordedStep(options.replay, 0, 0));
    for (size_t r = 0; r < input.rows.size(); ++r) {
      if (!input.rows[r].valid) continue;
      const auto row = recorded.find(r);
      if (row == recorded.end()) return Bad("{}: has no row {}", options.replay, r);
      if (row->second.logits !=
          LogitsHash(input.logits.data() + r * input.gate.num_experts, input.gate.num_experts)) {
        return Bad("{}: row {} was recorded from other logits", options.replay, r);
      }
    }
    ASSIGN_OR_RETURN(out.router, MakeReplayRouter(input.gate, std::move(recorded), rows));
  }
  if (options.trace != nullptr) out.router->set_trace(options.trace, options.trace_detail);
  const MatView<const float> logits(input.logits.data(), input.rows.size(), input.gate.num_experts);
  out.step = out.router->Route(0, input.rows, logits, input.bias);
  return out;
}

std::string_view SlotWord(const Routed& routed, const RouteInput& input, size_t r, size_t i) {
  if (!input.rows[r].valid) return "padded";
  if (static_cast<int32_t>(i) >= routed.step.counts[r]) return "unused";
  if (routed.step.ids.Row(r)[i] >= static_cast<int32_t>(input.gate.num_experts)) return "shared";
  return ReasonName(routed.step.reasons.Row(r)[i]);
}

}  // namespace

Result<RouteInput> ParseRouteInput(std::string_view text, const std::string& where) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    return Bad("{}: wanted a JSON object {{config, logits, bias, rows}}, got what is not JSON: {}",
               where, e.what());
  }
  if (!json.is_object())
    return Bad("{}: wanted a JSON object {{config, logits, bias, rows}}", where);
  for (const auto& [key, value] : json.items()) {
    if (key != "config" && key != "logits" && key != "bias" && key != "rows")
      return Bad("{}: unknown key '{}'; known: config, logits, bias, rows", where, key);
  }
  auto read = [&]() -> Result<RouteInput> {
    RouteInput input;
    const auto config = json.find("config");
    if (config == json.end() || !config->is_object())
      return Bad("config: wanted an object with the model's routing fields");
    const auto bias = json.find("bias");
    const bool has_bias =
        bias != json.end() && !bias->is_null() && !(bias->is_array() && bias->empty());
    ASSIGN_OR_RETURN(input.gate, ReadGate(*config, "config", has_bias));
    if (has_bias) {
      RETURN_IF_ERROR(ReadFloats(*bias, "bias", input.gate.num_experts, input.bias));
      for (size_t e = 0; e < input.bias.size(); ++e) {
        if (!std::isfinite(input.bias[e]))
          return Bad("bias[{}]: wanted a finite number, got {}", e, input.bias[e]);
      }
    }
    RETURN_IF_ERROR(ReadLogits(json, input));
    return input;
  };
  auto input = read();
  if (!input) return Bad("{}: {}", where, input.error().message);
  return input;
}

Result<RouteInput> LoadRouteInput(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxRouteFileBytes));
  return ParseRouteInput(text, path);
}

Result<std::string> RouteJson(const RouteInput& input, const RouteOptions& options) {
  ASSIGN_OR_RETURN(const Routed routed, Run(input, options));
  const RoutedStep& step = routed.step;
  OrderedJson ids = OrderedJson::array(), weights = OrderedJson::array(),
              reasons = OrderedJson::array();
  for (size_t r = 0; r < input.rows.size(); ++r) {
    OrderedJson row_ids = OrderedJson::array(), row_weights = OrderedJson::array(),
                row_reasons = OrderedJson::array();
    for (size_t i = 0; i < step.ids.cols; ++i) {
      row_ids.push_back(step.ids.Row(r)[i]);
      row_weights.push_back(Number(step.weights.Row(r)[i]));
      row_reasons.push_back(SlotWord(routed, input, r, i));
    }
    ids.push_back(std::move(row_ids));
    weights.push_back(std::move(row_weights));
    reasons.push_back(std::move(row_reasons));
  }
  OrderedJson set = OrderedJson::array();
  for (const int32_t e : step.plan.experts) {
    if (e < static_cast<int32_t>(input.gate.num_experts)) set.push_back(e);
  }
  OrderedJson out;
  out["routing"] = options.replay.empty() ? PolicyText(routed.router->policy()) : "replay";
  out["batch_dependent"] = options.replay.empty() && routed.router->batch_coupled();
  out["ids"] = std::move(ids);
  out["weights"] = std::move(weights);
  out["distinct"] = step.stats.distinct_experts;
  out["union"] = std::move(set);
  out["reasons"] = std::move(reasons);
  out["stats"] = {{"rows", step.stats.rows},
                  {"decode_rows", step.stats.decode_rows},
                  {"assignments", step.stats.assignments},
                  {"piggybacks", step.stats.piggybacks},
                  {"dropped", step.stats.dropped},
                  {"changed_rows", step.stats.changed_rows}};
  return out.dump(2);
}

Result<std::string> RouteText(const RouteInput& input, const RouteOptions& options) {
  ASSIGN_OR_RETURN(const Routed routed, Run(input, options));
  const RoutedStep& step = routed.step;
  std::string text;
  for (size_t r = 0; r < input.rows.size(); ++r) {
    text += fmt::format("row {:<4}", r);
    if (!input.rows[r].valid) text += " padding";
    for (int32_t i = 0; i < step.counts[r]; ++i) {
      const bool rides = SlotWord(routed, input, r, static_cast<size_t>(i)) == "piggyback";
      text += fmt::format("  {}{} {:.6f}", step.ids.Row(r)[i], rides ? "*" : "",
                          step.weights.Row(r)[i]);
    }
    text += '\n';
  }
  text += fmt::format(
      "{} distinct experts, {} assignments, {} piggybacks (*), {} vanilla assignments dropped\n",
      step.stats.distinct_experts, step.stats.assignments, step.stats.piggybacks,
      step.stats.dropped);
  return text;
}

}  // namespace carpool
