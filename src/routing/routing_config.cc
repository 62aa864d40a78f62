#include "routing/routing_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

/// What a family leaves unsaid in its config.json.
struct Family {
  std::string_view model_type;
  GateActivation scoring;
  bool bias;
  bool renormalize;
  bool custom = false;
  bool topk_then_softmax = false;
};
constexpr auto kSig = GateActivation::kSigmoid;
constexpr auto kSoft = GateActivation::kSoftmax;
constexpr Family kFamilies[] = {
    {"glm_moe_dsa", kSig, true, true},
    {"glm4_moe", kSig, true, true},
    {"glm4_moe_lite", kSig, true, true},
    {"deepseek_v2", kSoft, false, false},
    {"deepseek_v3", kSig, true, true},
    {"deepseek_v32", kSig, true, true},
    {"deepseek_v4", GateActivation::kSqrtSoftplus, true, true},
    {"kimi_k2", kSig, true, true},
    {"kimi_k25", kSig, true, true},
    {"dots1", kSig, true, true},
    {"qwen2_moe", kSoft, false, false},
    {"qwen3_moe", kSoft, false, true},
    {"qwen3_next", kSoft, false, true},
    {"qwen3_5_moe", kSoft, false, true},
    {"mixtral", kSoft, false, true},
    {"olmoe", kSoft, false, false},
    {"gpt_oss", kSoft, false, true, false, true},
    {"minimax_m2", kSig, true, true},
    {"minimax", kSoft, false, true},
    {"llama4", kSig, false, false, true},
    {"llama4_text", kSig, false, false, true},
    {"ernie4_5_moe", kSoft, true, true},
    {"granitemoe", kSoft, false, true, false, true},
    {"granitemoeshared", kSoft, false, true, false, true},
    {"granitemoehybrid", kSoft, false, true, false, true},
    {"hunyuan_v1_moe", kSoft, false, true},
    {"hunyuan", kSoft, false, true},
    {"step3p5", kSig, true, true},
    {"longcat_flash", kSoft, true, false},
    {"nemotron_h", kSig, true, true},
    {"phimoe", kSoft, false, false},
};

/// Reads fields by the first of several names that is there, and remembers nothing else.
class Reader {
 public:
  Reader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const Json* Find(std::initializer_list<const char*> names, std::string* found = nullptr) const {
    for (const char* name : names) {
      const auto i = object_.find(name);
      if (i != object_.end() && !i->is_null()) {
        if (found != nullptr) *found = path_ + name;
        return &*i;
      }
    }
    return nullptr;
  }
  Result<std::optional<size_t>> Size(std::initializer_list<const char*> names) const {
    std::string where;
    const Json* value = Find(names, &where);
    if (value == nullptr) return std::optional<size_t>();
    // Hunyuan, Ernie: one number, or a list with one per layer (or modality); routing looks at the
    // first.
    if (value->is_array() && !value->empty()) {
      value = &value->front();
      where += "[0]";
    }
    if (!value->is_number_integer() || value->get<double>() < 0 || value->get<double>() > 1e9) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}: wanted a whole number 0..1000000000, got {}", where, Shown(*value));
    }
    return std::optional<size_t>(value->get<size_t>());
  }
  Result<std::optional<bool>> Bool(std::initializer_list<const char*> names) const {
    std::string where;
    const Json* value = Find(names, &where);
    if (value == nullptr) return std::optional<bool>();
    if (!value->is_boolean()) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: wanted true or false, got {}", where,
                       Shown(*value));
    }
    return std::optional<bool>(value->get<bool>());
  }
  Result<std::optional<double>> Number(std::initializer_list<const char*> names) const {
    std::string where;
    const Json* value = Find(names, &where);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number() || !std::isfinite(value->get<double>()) ||
        std::abs(value->get<double>()) > 1e30) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a finite number, got {}", where,
                       Shown(*value));
    }
    return std::optional<double>(value->get<double>());
  }
  Result<std::optional<std::string>> Text(std::initializer_list<const char*> names) const {
    std::string where;
    const Json* value = Find(names, &where);
    if (value == nullptr) return std::optional<std::string>();
    if (!value->is_string()) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a string, got {}", where,
                       Shown(*value));
    }
    return std::optional<std::string>(value->get<std::string>());
  }
  std::string Path(const char* name) const { return path_ + name; }

 private:
  static std::string Shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "…";
    return text;
  }
  const Json& object_;
  std::string path_;
};

constexpr auto kExpertNames = {"n_routed_experts", "num_experts",        "num_local_experts",
                               "moe_num_experts",  "num_routed_experts", "N"};

Status ReadScoring(const Reader& in, const Family& family, RoutingConfig& c) {
  ASSIGN_OR_RETURN(const auto scoring,
                   in.Text({"scoring_func", "score_function", "score_func", "moe_router_activation",
                            "moe_router_score_function", "scoring", "activation", "act"}));
  c.scoring = family.scoring;
  if (!scoring) return {};
  if (*scoring == "sigmoid") {
    c.scoring = kSig;
  } else if (*scoring == "softmax") {
    c.scoring = kSoft;
  } else if (*scoring == "sqrtsoftplus") {
    c.scoring = GateActivation::kSqrtSoftplus;
  } else {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted sigmoid, softmax or sqrtsoftplus, got '{}'",
                     in.Path("scoring_func"), *scoring);
  }
  return {};
}

Status ReadShared(const Reader& in, RoutingConfig& c) {
  ASSIGN_OR_RETURN(const auto shared, in.Size({"n_shared_experts", "num_shared_experts",
                                               "moe_num_shared_experts", "num_shared_expert"}));
  ASSIGN_OR_RETURN(const auto width, in.Size({"shared_expert_intermediate_size",
                                              "shared_intermediate_size", "share_expert_dim"}));
  c.num_shared = shared ? *shared : (width && *width > 0 ? 1 : 0);
  if (c.model == "llama4" || c.model == "llama4_text") c.num_shared = 1;
  return {};
}

Status ReadGroups(const Reader& in, RoutingConfig& c) {
  ASSIGN_OR_RETURN(const auto groups,
                   in.Size({"n_group", "num_expert_group", "n_groups", "num_groups", "G"}));
  ASSIGN_OR_RETURN(const auto kept, in.Size({"topk_group", "topk_groups", "groups_kept", "kg"}));
  if (!groups || *groups == 0) return {};
  c.num_groups = *groups;
  c.groups_kept = kept ? *kept : 1;
  return {};
}

}  // namespace

Result<RoutingConfig> ParseRoutingConfig(std::string_view text, const std::string& where) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a JSON object (a model's config.json), got what is not JSON: {}",
                     where, e.what());
  }
  if (!json.is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a JSON object (a model's config.json)", where);
  }
  // Multi-modal models keep the language model's fields one level down.
  const Json* object = &json;
  std::string prefix = where + ": ";
  for (const char* nested : {"text_config", "language_config", "llm_config"}) {
    const bool here = Reader(json, "").Find(kExpertNames) != nullptr;
    const auto i = json.find(nested);
    if (here || i == json.end() || !i->is_object()) continue;
    object = &*i;
    prefix += std::string(nested) + ".";
    break;
  }
  const Reader in(*object, prefix);
  RoutingConfig c;
  ASSIGN_OR_RETURN(const auto model_type, in.Text({"model_type"}));
  c.model = model_type.value_or("unknown");
  Family family{"", kSoft, false, true};
  for (const Family& f : kFamilies) {
    if (f.model_type == c.model) family = f;
  }
  std::string field;
  if (in.Find(kExpertNames, &field) == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}n_routed_experts: missing (also looked for num_experts, num_local_experts, "
                     "moe_num_experts); this "
                     "is not the config of a Mixture-of-Experts model",
                     prefix);
  }
  ASSIGN_OR_RETURN(const auto experts, in.Size(kExpertNames));
  ASSIGN_OR_RETURN(const auto top_k, in.Size({"num_experts_per_tok", "num_experts_per_token",
                                              "experts_per_token", "moe_topk", "moe_top_k", "moe_k",
                                              "num_selected_experts", "top_k", "topk", "k"}));
  if (!top_k) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}num_experts_per_tok: missing (also looked for experts_per_token, moe_topk, "
                     "moe_top_k, moe_k)",
                     prefix);
  }
  c.num_experts = *experts;
  c.top_k = *top_k;
  RETURN_IF_ERROR(ReadGroups(in, c));
  RETURN_IF_ERROR(ReadScoring(in, family, c));
  RETURN_IF_ERROR(ReadShared(in, c));
  ASSIGN_OR_RETURN(const auto method, in.Text({"topk_method"}));
  ASSIGN_OR_RETURN(const auto bias,
                   in.Bool({"use_routing_bias", "use_moe_router_bias", "moe_use_aux_free",
                            "moe_router_enable_expert_bias", "router_bias"}));
  c.has_bias = bias ? *bias : (method ? *method == "noaux_tc" : family.bias);
  ASSIGN_OR_RETURN(const auto renormalize,
                   in.Bool({"norm_topk_prob", "renormalize", "norm_expert_weight", "renorm"}));
  c.renormalize = renormalize.value_or(family.renormalize);
  ASSIGN_OR_RETURN(const auto scale,
                   in.Number({"routed_scaling_factor", "moe_router_scaling_factor",
                              "router_scaling_factor", "scale", "rsf"}));
  c.scale = static_cast<float>(scale.value_or(1.0));
  if (!(c.scale > 0.0f)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}routed_scaling_factor: wanted a number above 0, got {}", prefix, c.scale);
  }
  ASSIGN_OR_RETURN(const auto zero, in.Size({"zero_expert_num"}));
  c.zero_experts = zero.value_or(0);
  c.custom_function = family.custom || c.zero_experts > 0;
  c.softmax_over_selected = family.topk_then_softmax;
  if (auto gate = ModelGate(c); !gate) {
    // ValidateGate speaks of our fields; say which keys of this file they came from.
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}{} (num_experts = {}, top_k = num_experts_per_tok, num_groups = n_group, "
                     "groups_kept = topk_group, "
                     "scale = routed_scaling_factor)",
                     prefix, gate.error().message, field.substr(prefix.size()));
  }
  return c;
}

Result<RoutingConfig> LoadRoutingConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ParseRoutingConfig(text, path);
}

}  // namespace carpool
