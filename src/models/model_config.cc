#include "models/model_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "models/all_models.h"
#include "models/config_parts.h"
#include "weights/gguf_config.h"
#include "weights/json_text.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxEos = 1024;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

/// model_type, or what "architectures" implies.
std::string ModelType(const Json& config) {
  if (const auto it = config.find("model_type"); it != config.end() && it->is_string())
    return it->get<std::string>();
  const auto it = config.find("architectures");
  if (it == config.end() || !it->is_array() || it->empty() || !it->front().is_string()) return {};
  const auto& name = it->front().get_ref<const std::string&>();
  for (const Architecture& a : AllArchitectures()) {
    if (a.class_name == name) return std::string(a.model_type);
  }
  return name;
}

/// Ids of "eos_token_id": one number or a list.
std::vector<int32_t> EosIds(ConfigFields& fields, size_t vocab) {
  std::vector<int32_t> ids;
  const Json* value = fields.Find({"eos_token_id"});
  if (value == nullptr) return ids;
  const std::string wanted =
      fmt::format("an id or a list of up to {} ids from 0 to {}", kMaxEos, vocab - 1);
  const auto add = [&](const Json& id) {
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

/// What every family has, then what is the architecture's own.
Result<ModelConfig> Parse(const Architecture& architecture, const Json& object,
                          const std::string& where) {
  ConfigFields f(object, where);
  ModelConfig c;
  c.model_type = architecture.model_type;
  c.vocab_size = f.Size({"vocab_size"}, 2, kMaxVocab);
  c.hidden = f.Size({"hidden_size"}, 1, kMaxWidth);
  c.num_layers = f.Size({"num_hidden_layers"}, 1, kMaxLayers);
  c.num_mtp_layers = f.Size({"num_nextn_predict_layers"}, 0, 16, 0);
  c.rms_eps = static_cast<float>(f.Number({"rms_norm_eps"}, 1e-12, 1.0, 1e-5));
  c.max_position = f.Size({"max_position_embeddings"}, 1, kMaxContext);
  c.tie_embeddings = f.Flag({"tie_word_embeddings"}, false);
  c.eos_ids = EosIds(f, c.vocab_size);
  f.RequireText({"hidden_act"}, "silu");
  // A dense model: one expert, which no layer routes to.
  c.gate.num_experts = c.gate.top_k = 1;
  c.gate.group_score = GroupScore::kNone;
  architecture.read(f, c);
  RETURN_IF_ERROR(f.status());
  CARPOOL_CHECK_EQ(c.mlp.size(), c.num_layers);
  return c;
}

Status ReadGenerationConfig(const std::string& dir, ModelConfig& c) {
  const std::string path = dir + "/generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return {};
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const Json object, ParseJsonObject(text, path));
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
  ASSIGN_OR_RETURN(const Json document, ParseJsonObject(text, where));
  const Json* object = &document;
  std::string type = ModelType(document);
  // Multimodal wrappers keep the language model's fields one level down.
  for (const char* nested : {"text_config", "language_config", "llm_config"}) {
    const auto it = document.find(nested);
    if (FindArchitecture(type) != nullptr || it == document.end() || !it->is_object()) continue;
    const std::string inner = ModelType(*it);
    if (inner.empty()) continue;
    object = &*it;
    type = inner;
  }
  if (type.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: model_type: wanted one of {}, got nothing",
                     where, SupportedModelTypes());
  }
  if (const Architecture* a = FindArchitecture(type)) return Parse(*a, *object, where);
  const std::string_view why =
      type == "glm5_next" ? " (GLM-5.3-Flash is another architecture than GLM-5: linear attention)"
                          : "";
  return MakeError(ErrorCode::kUnsupported, "{}: model_type '{}' is not supported{}; supported: {}",
                   where, Printable(type), why, SupportedModelTypes());
}

Result<ModelConfig> LoadModelConfig(const std::string& dir) {
  if (IsGgufFile(dir)) {
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::Open(dir));
    ASSIGN_OR_RETURN(const std::string text, GgufConfigJson(model));
    return ParseModelConfig(text, dir + ": metadata");
  }
  std::error_code ec;
  if (!std::filesystem::exists(dir, ec)) {
    return MakeError(ErrorCode::kNotFound, "{}: no such directory", Printable(dir, 4096));
  }
  if (!std::filesystem::is_directory(dir, ec)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: wanted a checkpoint directory, got a file that is not GGUF",
                     Printable(dir, 4096));
  }
  const std::string path = dir + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  RETURN_IF_ERROR(ReadGenerationConfig(dir, config));
  return config;
}

}  // namespace carpool
