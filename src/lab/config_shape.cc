#include "lab/config_shape.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "routing/routing_config.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

/// Sizes by the first of several names that is there. The first problem is kept.
class Sizes {
 public:
  Sizes(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  size_t Get(std::initializer_list<const char*> names, size_t fallback) {
    for (const char* name : names) {
      const auto i = object_.find(name);
      if (i == object_.end() || i->is_null()) continue;
      const Json& value = i->is_array() && !i->empty() ? i->front() : *i;
      if (value.is_number_unsigned() && value.get<uint64_t>() <= 1'000'000'000)
        return value.get<size_t>();
      if (problem_.empty())
        problem_ = fmt::format("{}: {}: wanted a whole number, got {}", where_, name,
                               i->dump().substr(0, 40));
      return fallback;
    }
    return fallback;
  }
  size_t Need(std::initializer_list<const char*> names) {
    const size_t value = Get(names, 0);
    if (value == 0 && problem_.empty())
      problem_ = fmt::format("{}: {}: wanted a number above 0", where_, *names.begin());
    return value;
  }
  const Json* List(const char* name) const {
    const auto i = object_.find(name);
    return i == object_.end() || !i->is_array() ? nullptr : &*i;
  }
  Status status() const {
    if (problem_.empty()) return {};
    return MakeError(ErrorCode::kInvalidArgument, "{}", problem_);
  }

 private:
  const Json& object_;
  std::string where_, problem_;
};

/// Multi-modal models keep the language model's fields one level down.
const Json& LanguageConfig(const Json& config) {
  for (const char* nested : {"text_config", "language_config", "llm_config"}) {
    const auto i = config.find(nested);
    if (i != config.end() && i->is_object() && i->contains("hidden_size")) return *i;
  }
  return config;
}

size_t MoeLayers(Sizes& in, size_t layers) {
  if (const Json* kinds = in.List("mlp_layer_types"))
    return static_cast<size_t>(std::count(kinds->begin(), kinds->end(), "sparse"));
  if (const Json* listed = in.List("moe_layers")) return listed->size();
  const size_t first = in.Get({"first_k_dense_replace", "moe_layer_start_index"}, 0);
  const size_t step = std::max<size_t>(in.Get({"moe_layer_freq", "decoder_sparse_step",
                                               "interleave_moe_layer_step", "moe_layer_interval"},
                                              1),
                                       1);
  const Json* dense_only = in.List("mlp_only_layers");
  size_t count = 0;
  for (size_t l = first; l < layers; ++l) {
    const bool dense = dense_only != nullptr &&
                       std::find(dense_only->begin(), dense_only->end(), l) != dense_only->end();
    // Qwen and Llama count from one, DeepSeek from zero; with a step of one they agree.
    count += !dense && (l + 1) % step == 0;
  }
  return count;
}

/// Layers whose sparse attention has an indexer of its own (GLM-5.2 shares them).
size_t IndexerLayers(Sizes& in, const Json& config, size_t layers) {
  if (const Json* kinds = in.List("indexer_types"))
    return static_cast<size_t>(std::count(kinds->begin(), kinds->end(), "full"));
  if (const auto i = config.find("index_topk_pattern"); i != config.end() && i->is_string()) {
    const auto& pattern = i->get_ref<const std::string&>();
    return static_cast<size_t>(std::count(pattern.begin(), pattern.end(), 'F'));
  }
  const size_t freq = std::max<size_t>(in.Get({"index_topk_freq"}, 1), 1);
  const size_t offset = in.Get({"index_skip_topk_offset"}, 2);
  size_t full = 0;
  for (size_t l = 0; l < layers; ++l) full += (l + 1 > offset ? l + 1 - offset : 0) % freq == 0;
  return full;
}

struct AttentionSizes {
  double parameters = 0.0;  // of all layers
  double kv_bytes = 0.0, index_bytes = 0.0;
  size_t sparse_topk = 0;
};

AttentionSizes CountAttention(Sizes& in, const Json& config, size_t hidden, size_t layers) {
  const auto h = static_cast<double>(hidden), l = static_cast<double>(layers);
  const auto heads = static_cast<double>(in.Need({"num_attention_heads"}));
  AttentionSizes a;
  const auto latent = static_cast<double>(in.Get({"kv_lora_rank"}, 0));
  if (latent == 0) {
    const auto kv_heads =
        static_cast<double>(in.Get({"num_key_value_heads"}, static_cast<size_t>(heads)));
    const auto dim = static_cast<double>(
        in.Get({"head_dim"}, heads > 0 ? hidden / static_cast<size_t>(heads) : 0));
    a.parameters = l * h * dim * (2 * heads + 2 * kv_heads);
    a.kv_bytes = l * 2 * kv_heads * dim * 2;
    return a;
  }
  const auto q_rank = static_cast<double>(in.Get({"q_lora_rank"}, 0));
  const auto nope = static_cast<double>(in.Need({"qk_nope_head_dim"})),
             rope = static_cast<double>(in.Need({"qk_rope_head_dim"})),
             v = static_cast<double>(in.Need({"v_head_dim"}));
  const double q =
      q_rank > 0 ? h * q_rank + q_rank * heads * (nope + rope) : h * heads * (nope + rope);
  a.parameters = l * (q + h * (latent + rope) + latent * heads * (nope + v) + heads * v * h);
  a.kv_bytes = l * (latent + rope) * 2;
  a.sparse_topk = in.Get({"index_topk"}, 0);
  if (a.sparse_topk > 0) {
    const auto full = static_cast<double>(IndexerLayers(in, config, layers));
    const auto dim = static_cast<double>(in.Need({"index_head_dim"})),
               index_heads = static_cast<double>(in.Need({"index_n_heads"}));
    a.parameters += full * (q_rank * index_heads * dim + h * dim + h * index_heads);
    a.index_bytes = full * dim * 2;
  }
  return a;
}

/// What quantization_config says of the experts.
WeightFormat ExpertFormat(const Json& config) {
  const auto i = config.find("quantization_config");
  if (i == config.end()) return WeightFormat::kBF16;
  std::string text = i->dump();
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (text.find("nvfp4") != text.npos) return WeightFormat::kNVFP4;
  if (text.find("mxfp4") != text.npos || text.find("\"num_bits\":4") != text.npos ||
      text.find("\"bits\":4") != text.npos)
    return WeightFormat::kMXFP4;  // or another four-bit format with a scale per group
  return WeightFormat::kFP8;
}

Status CheckLayerTypes(const Sizes& in, const std::string& name) {
  const Json* kinds = in.List("layer_types");
  if (kinds == nullptr) return {};
  for (const Json& kind : *kinds) {
    if (kind == "full_attention" || kind == "sliding_attention" || kind == "chunked_attention")
      continue;
    return MakeError(ErrorCode::kUnsupported,
                     "{}: layer_types: the plan cannot count layers of type {}; describe the model "
                     "by a --shape instead",
                     name, kind.dump());
  }
  return {};
}

}  // namespace

Result<ConfigShape> ShapeFromConfigText(const std::string& text, const std::string& name) {
  ASSIGN_OR_RETURN(const RoutingConfig routing, ParseRoutingConfig(text, name));
  ConfigShape out;
  MoeShape& s = out.shape;
  s.name = name;
  ASSIGN_OR_RETURN(s.gate, ModelGate(routing));
  const Json whole = Json::parse(text);
  const Json& config = LanguageConfig(whole);
  Sizes in(config, name);
  RETURN_IF_ERROR(CheckLayerTypes(in, name));
  s.hidden = in.Need({"hidden_size"});
  const size_t layers = in.Need({"num_hidden_layers"});
  s.width = in.Need({"moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"});
  s.shared_width =
      in.Get({"shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"},
             routing.num_shared * s.width);
  s.moe_layers = std::min(MoeLayers(in, layers), layers);
  const AttentionSizes attention = CountAttention(in, config, s.hidden, layers);
  const size_t dense_width = in.Get({"intermediate_size_mlp", "intermediate_size"}, 0);
  const size_t vocab = in.Need({"vocab_size"});
  RETURN_IF_ERROR(in.status());
  if (s.moe_layers == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: no layer of it has experts", name);
  }
  const auto h = static_cast<double>(s.hidden);
  s.dense_parameters =
      attention.parameters +
      static_cast<double>(layers - s.moe_layers) * 3 * h * static_cast<double>(dense_width) +
      h * static_cast<double>(vocab);
  s.kv_bytes_per_token = attention.kv_bytes;
  s.index_bytes_per_token = attention.index_bytes;
  s.sparse_topk = attention.sparse_topk;
  out.expert_format = ExpertFormat(whole);
  return out;
}

Result<ConfigShape> ShapeFromConfig(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path file =
      fs::is_directory(path, ec) ? fs::path(path) / "config.json" : fs::path(path);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file.string(), size_t{16} << 20));
  return ShapeFromConfigText(text, file.string());
}

}  // namespace carpool
