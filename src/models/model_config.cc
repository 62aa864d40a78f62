#include "models/model_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "models/architectures.h"
#include "models/config_fields.h"
#include "weights/json_text.h"

namespace carpool {
namespace {

using nlohmann::json;

// Far above every model there is; below what would let a hostile file ask for absurd amounts of
// memory.
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxExperts = 4096;
constexpr size_t kMaxWidth = size_t{1} << 20;
constexpr size_t kMaxVocab = size_t{1} << 24;
constexpr size_t kMaxContext = size_t{1} << 28;
constexpr size_t kMaxHeads = 4096;
constexpr size_t kMaxEos = 1024;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

std::string Quoted(std::string_view text) { return fmt::format("'{}'", Printable(text)); }

std::string Supported() {
  std::string list;
  for (const auto& a : kArchitectures)
    list += fmt::format("{}{}", list.empty() ? "" : ", ", a.model_type);
  return list;
}

bool IsSupported(std::string_view model_type) {
  return std::any_of(kArchitectures.begin(), kArchitectures.end(),
                     [&](const auto& a) { return a.model_type == model_type; });
}

/// model_type, or what "architectures" implies.
std::string ModelType(const json& config) {
  if (const auto it = config.find("model_type"); it != config.end() && it->is_string())
    return it->get<std::string>();
  const auto it = config.find("architectures");
  if (it == config.end() || !it->is_array() || it->empty() || !it->front().is_string()) return {};
  const auto& name = it->front().get_ref<const std::string&>();
  for (const auto& a : kArchitectures) {
    if (a.class_name == name) return std::string(a.model_type);
  }
  return name;
}

/// Ids of "eos_token_id": one number or a list.
std::vector<int32_t> EosIds(ConfigFields& fields, size_t vocab) {
  std::vector<int32_t> ids;
  const json* value = fields.Find({"eos_token_id"});
  if (value == nullptr) return ids;
  const std::string wanted =
      fmt::format("an id or a list of up to {} ids from 0 to {}", kMaxEos, vocab - 1);
  const auto add = [&](const json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < vocab) {
      ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
    } else {
      fields.Fail("eos_token_id", wanted, ShortJson(id));
    }
  };
  if (!value->is_array()) {
    add(*value);
  } else if (value->size() > kMaxEos) {
    fields.Fail("eos_token_id", wanted, ShortJson(*value));
  } else {
    std::for_each(value->begin(), value->end(), add);
  }
  return ids;
}

void ReadGate(ConfigFields& f, GateSpec& gate) {
  gate.num_experts =
      f.Size({"n_routed_experts", "num_local_experts", "num_experts"}, 1, kMaxExperts);
  gate.top_k = f.Size({"num_experts_per_tok"}, 1, gate.num_experts);
  // 0 and absent mean one group.
  gate.num_groups = std::max<size_t>(1, f.Size({"n_group"}, 0, gate.num_experts, 1));
  gate.groups_kept =
      std::max<size_t>(1, f.Size({"topk_group"}, 0, gate.num_groups, gate.num_groups));
  f.Require(gate.num_experts % gate.num_groups == 0, "n_group",
            fmt::format("a divisor of the {} experts", gate.num_experts),
            fmt::format("{}", gate.num_groups));
  const size_t group_size = gate.num_experts / gate.num_groups;
  f.Require(gate.num_groups == 1 || group_size >= 2, "n_group",
            "groups of at least two experts (a group's score is the sum of its best two)",
            fmt::format("{} groups of one", gate.num_groups));
  f.Require(gate.top_k <= gate.groups_kept * group_size, "num_experts_per_tok",
            fmt::format("at most {} (topk_group {} times {} experts per group)",
                        gate.groups_kept * group_size, gate.groups_kept, group_size),
            fmt::format("{}", gate.top_k));
  const std::string scoring = f.Text({"scoring_func"}, "sigmoid");
  if (scoring != "sigmoid") {
    f.Fail("scoring_func", "sigmoid", Quoted(scoring), ErrorCode::kUnsupported);
  }
  const std::string method = f.Text({"topk_method"}, "noaux_tc");
  if (method != "noaux_tc") {
    f.Fail("topk_method", "noaux_tc", Quoted(method), ErrorCode::kUnsupported);
  }
  gate.activation = GateActivation::kSigmoid;
  gate.has_bias = true;
  gate.group_score = gate.num_groups > 1 ? GroupScore::kTop2Sum : GroupScore::kNone;
  gate.renormalize =
      f.Flag({"norm_topk_prob"}, true) ? Renormalize::kDivideBySum : Renormalize::kNone;
  gate.renorm_epsilon = 1e-20f;
  gate.scale = static_cast<float>(f.Number({"routed_scaling_factor"}, 1e-6, 1e6, 1.0));
}

void ReadRope(ConfigFields& f, const std::string& where, ModelConfig& c) {
  // Newer files keep all of it in rope_parameters, older ones theta at the top and the rest in
  // rope_scaling.
  std::optional<double> theta;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* scaling = f.Find({key});
    if (scaling == nullptr) continue;
    if (!scaling->is_object()) {
      f.Fail(key, "an object or null", ShortJson(*scaling));
      return;
    }
    ConfigFields inner(*scaling, fmt::format("{}: {}", where, key));
    const std::string type = inner.Text({"rope_type", "type"}, "default");
    if (type != "default") {
      inner.Fail("rope_type", fmt::format("default, the only one {} has", c.model_type),
                 Quoted(type), ErrorCode::kUnsupported);
    }
    if (!theta && inner.Find({"rope_theta"}) != nullptr)
      theta = inner.Number({"rope_theta"}, 1.0, 1e15);
    if (!inner.ok()) {
      f.Adopt(inner);
      return;
    }
  }
  c.rope_theta = theta ? *theta : f.Number({"rope_theta"}, 1.0, 1e15, 10000.0);
  c.rope_interleave = f.Flag({"rope_interleave"}, true);
  c.index_rope_interleave = f.Flag({"indexer_rope_interleave"}, true);
}

/// Which layers are sparse: a list, or "the first n are dense".
void ReadMlpKinds(ConfigFields& f, ModelConfig& c) {
  const json* list = f.Find({"mlp_layer_types"});
  if (list == nullptr) {
    const size_t dense = f.Size({"first_k_dense_replace"}, 0, c.num_layers, 0);
    c.mlp.assign(c.num_layers, MlpKind::kSparse);
    std::fill_n(c.mlp.begin(), dense, MlpKind::kDense);
    return;
  }
  const std::string wanted = fmt::format("{} strings \"dense\" or \"sparse\"", c.num_layers);
  if (!list->is_array() || list->size() < c.num_layers ||
      list->size() > c.num_layers + c.num_mtp_layers) {
    f.Fail("mlp_layer_types", wanted, ShortJson(*list));
    return;
  }
  for (size_t i = 0; i < c.num_layers; ++i) {
    const json& kind = (*list)[i];
    if (kind != "dense" && kind != "sparse") f.Fail("mlp_layer_types", wanted, ShortJson(kind));
    c.mlp.push_back(kind == "dense" ? MlpKind::kDense : MlpKind::kSparse);
  }
}

/// Which layers run their own indexer: a list, a pattern, or a frequency with an offset.
void ReadIndexerKinds(ConfigFields& f, ModelConfig& c) {
  const size_t most = c.num_layers + c.num_mtp_layers;
  if (const json* list = f.Find({"indexer_types"})) {
    const std::string wanted = fmt::format("{} strings \"full\" or \"shared\"", c.num_layers);
    if (!list->is_array() || list->size() < c.num_layers || list->size() > most) {
      f.Fail("indexer_types", wanted, ShortJson(*list));
      return;
    }
    for (size_t i = 0; i < c.num_layers; ++i) {
      const json& kind = (*list)[i];
      if (kind != "full" && kind != "shared") f.Fail("indexer_types", wanted, ShortJson(kind));
      c.indexer.push_back(kind == "full" ? IndexerKind::kFull : IndexerKind::kShared);
    }
  } else if (const std::string pattern = f.Text({"index_topk_pattern"}, ""); !pattern.empty()) {
    const bool letters = pattern.find_first_not_of("FS") == pattern.npos;
    if (!letters || pattern.size() < c.num_layers || pattern.size() > most) {
      f.Fail("index_topk_pattern", fmt::format("{} letters F or S", c.num_layers), Quoted(pattern));
      return;
    }
    for (size_t i = 0; i < c.num_layers; ++i) {
      c.indexer.push_back(pattern[i] == 'F' ? IndexerKind::kFull : IndexerKind::kShared);
    }
  } else {
    const size_t freq = std::max<size_t>(1, f.Size({"index_topk_freq"}, 0, kMaxLayers, 1));
    const size_t offset = f.Size({"index_skip_topk_offset"}, 0, kMaxLayers, 2);
    for (size_t i = 0; i < c.num_layers; ++i) {
      const size_t place = i + 1 > offset ? i + 1 - offset : 0;
      c.indexer.push_back(place % freq == 0 ? IndexerKind::kFull : IndexerKind::kShared);
    }
  }
  f.Require(c.indexer.empty() || c.indexer[0] == IndexerKind::kFull, "indexer_types",
            "a full indexer in layer 0 (a shared one uses the last full one before it)",
            "a shared one");
}

void ReadAttention(ConfigFields& f, ModelConfig& c) {
  c.num_heads = f.Size({"num_attention_heads"}, 1, kMaxHeads);
  c.q_lora_rank =
      f.Size({"q_lora_rank"}, 1, kMaxWidth);  // the indexer reads its output, so it must be there
  c.kv_lora_rank = f.Size({"kv_lora_rank"}, 1, kMaxWidth);
  c.qk_nope_dim = f.Size({"qk_nope_head_dim"}, 1, kMaxWidth);
  c.qk_rope_dim = f.Size({"qk_rope_head_dim"}, 2, kMaxWidth);
  c.v_dim = f.Size({"v_head_dim"}, 1, kMaxWidth);
  c.attention_bias = f.Flag({"attention_bias"}, false);
  const auto even = [&](const char* field, size_t n) {
    f.Require(n % 2 == 0, field, "an even number (rope turns pairs)", fmt::format("{}", n));
  };
  even("qk_rope_head_dim", c.qk_rope_dim);
  const size_t kv_heads = f.Size({"num_key_value_heads"}, 1, kMaxHeads, c.num_heads);
  f.Require(kv_heads == c.num_heads, "num_key_value_heads",
            fmt::format("{}, as many as num_attention_heads (MLA)", c.num_heads),
            fmt::format("{}", kv_heads));
  const size_t qk = c.qk_nope_dim + c.qk_rope_dim;
  const size_t said = f.Size({"qk_head_dim"}, 1, 2 * kMaxWidth, qk);
  f.Require(said == qk, "qk_head_dim", fmt::format("{}, the sum of the nope and rope parts", qk),
            fmt::format("{}", said));
  c.index_heads = f.Size({"index_n_heads"}, 1, kMaxHeads, 32);
  c.index_dim = f.Size({"index_head_dim"}, 1, kMaxWidth, 128);
  c.index_topk = f.Size({"index_topk"}, 1, kMaxContext, 2048);
  f.Require(c.qk_rope_dim <= c.index_dim, "index_head_dim",
            fmt::format("at least qk_rope_head_dim {}", c.qk_rope_dim),
            fmt::format("{}", c.index_dim));
}

Result<ModelConfig> ParseGlmMoeDsa(const json& object, const std::string& where) {
  ConfigFields f(object, where);
  ModelConfig c;
  c.model_type = "glm_moe_dsa";
  c.vocab_size = f.Size({"vocab_size"}, 2, kMaxVocab);
  c.hidden = f.Size({"hidden_size"}, 1, kMaxWidth);
  c.num_layers = f.Size({"num_hidden_layers"}, 1, kMaxLayers);
  c.num_mtp_layers = f.Size({"num_nextn_predict_layers"}, 0, 16, 0);
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  c.num_shared_experts = f.Size({"n_shared_experts"}, 0, 64, 1);
  ReadGate(f, c.gate);
  ReadAttention(f, c);
  ReadRope(f, where, c);
  if (f.ok()) {  // the lists have num_layers entries
    ReadMlpKinds(f, c);
    ReadIndexerKinds(f, c);
  }
  c.rms_eps = static_cast<float>(f.Number({"rms_norm_eps"}, 1e-12, 1.0, 1e-5));
  c.max_position = f.Size({"max_position_embeddings"}, 1, kMaxContext);
  c.tie_embeddings = f.Flag({"tie_word_embeddings"}, false);
  c.eos_ids = EosIds(f, c.vocab_size);
  const std::string act = f.Text({"hidden_act"}, "silu");
  if (act != "silu") f.Fail("hidden_act", "silu", Quoted(act), ErrorCode::kUnsupported);
  RETURN_IF_ERROR(f.status());
  return c;
}

Status ReadGenerationConfig(const std::string& dir, ModelConfig& c) {
  const std::string path = dir + "/generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return {};
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, path));
  ConfigFields f(object, path);
  if (auto ids = EosIds(f, c.vocab_size); !ids.empty()) c.eos_ids = std::move(ids);
  c.default_temperature = static_cast<float>(f.Number({"temperature"}, 0.0, 100.0, 1.0));
  c.default_top_p = static_cast<float>(f.Number({"top_p"}, 1e-6, 1.0, 1.0));
  return f.status();
}

}  // namespace

size_t ModelConfig::NumMoeLayers() const {
  return static_cast<size_t>(std::count(mlp.begin(), mlp.end(), MlpKind::kSparse));
}

Result<ModelConfig> ParseModelConfig(const std::string& text, const std::string& where) {
  ASSIGN_OR_RETURN(const json document, ParseJsonObject(text, where));
  const json* object = &document;
  std::string type = ModelType(document);
  // Multimodal wrappers keep the language model's fields one level down.
  if (const auto it = document.find("text_config");
      !IsSupported(type) && it != document.end() && it->is_object()) {
    const std::string inner = ModelType(*it);
    if (!inner.empty()) {
      object = &*it;
      type = inner;
    }
  }
  if (type.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: model_type: wanted one of {}, got nothing",
                     where, Supported());
  }
  if (type == "glm_moe_dsa") return ParseGlmMoeDsa(*object, where);
  const std::string_view why =
      type == "glm5_next" ? " (GLM-5.3-Flash is another architecture than GLM-5: linear attention)"
                          : "";
  return MakeError(ErrorCode::kUnsupported, "{}: model_type '{}' is not supported{}; supported: {}",
                   where, Printable(type), why, Supported());
}

Result<ModelConfig> LoadModelConfig(const std::string& dir) {
  std::error_code ec;
  if (!std::filesystem::exists(dir, ec)) {
    return MakeError(ErrorCode::kNotFound, "{}: no such directory", Printable(dir, 4096));
  }
  if (!std::filesystem::is_directory(dir, ec)) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a checkpoint directory, got a file",
                     Printable(dir, 4096));
  }
  const std::string path = dir + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  RETURN_IF_ERROR(ReadGenerationConfig(dir, config));
  return config;
}

}  // namespace carpool
