#include "weights/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "weights/gguf_fields.h"

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Source;
/// One architecture of GGUF: what Hugging Face calls it, and the fields only it has.
struct GgufArchitecture {
  std::string_view name;
  std::string_view (*model_type)(Source& s);
  void (*fill)(Source& s, OrderedJson& config);
};
const GgufArchitecture* FindGgufArchitecture(std::string_view name);

/// Metadata below "{architecture}." and the tensors that tell what it does not.
struct Source {
  explicit Source(const GgufModel& m) : model(m), fields(m) {}
  std::string Key(std::string_view key) const { return fmt::format("{}.{}", architecture, key); }
  std::optional<uint64_t> Uint(std::string_view key) { return fields.Uint(Key(key)); }
  std::optional<double> Number(std::string_view key) { return fields.Number(Key(key)); }
  bool Has(std::string_view tensor) const { return model.FindTensor(tensor) != nullptr; }
  /// Is there a tensor that begins so?
  bool HasPrefix(std::string_view prefix) const {
    const auto& all = model.tensors();
    const auto it =
        std::lower_bound(all.begin(), all.end(), prefix,
                         [](const GgufTensor& t, std::string_view n) { return t.name < n; });
    return it != all.end() && it->name.starts_with(prefix);
  }
  /// A dimension of the first layer's tensor of this name; nothing when no layer has it.
  std::optional<uint64_t> Dim(std::string_view below, size_t dim) const {
    for (const GgufTensor& t : model.tensors()) {
      if (t.name.starts_with("blk.") && t.name.ends_with(below) &&
          t.name[t.name.size() - below.size() - 1] == '.')
        return t.dims[dim];
    }
    return std::nullopt;
  }

  const GgufModel& model;
  GgufFields fields;
  std::string architecture;
};

/// config[key] = value, unless there is none.
template <typename T>
void Set(OrderedJson& config, const char* key, const std::optional<T>& value) {
  if (value) config[key] = *value;
}

uint64_t Layers(Source& s) {
  const uint64_t blocks = s.Uint("block_count").value_or(0);
  const uint64_t mtp = s.Uint("nextn_predict_layers").value_or(0);
  if (mtp == 0 || mtp >= blocks) return blocks;
  // Some files count prediction layers that they leave out, a few do not count them.
  const std::string last = fmt::format("blk.{}.", blocks - 1);
  const bool plain = s.HasPrefix(last) && !s.HasPrefix(last + "nextn.");
  return plain ? blocks : blocks - mtp;
}

/// {rope_parameters}: theta and scaling.
OrderedJson Rope(Source& s) {
  OrderedJson rope = {{"rope_type", "default"}};
  Set(rope, "rope_theta", s.Number("rope.freq_base"));
  const std::string_view type = s.fields.Text(s.Key("rope.scaling.type")).value_or("none");
  const auto factor = s.Number("rope.scaling.factor");
  if (type == "none" || !factor || (*factor == 1.0 && type == "linear")) return rope;
  rope["rope_type"] = type;
  rope["factor"] = *factor;
  if (type != "yarn") return rope;
  Set(rope, "original_max_position_embeddings", s.Uint("rope.scaling.original_context_length"));
  Set(rope, "beta_fast", s.Number("rope.scaling.yarn_beta_fast"));
  Set(rope, "beta_slow", s.Number("rope.scaling.yarn_beta_slow"));
  if (const auto log = s.Number("rope.scaling.yarn_log_multiplier"); log && *log != 0.0) {
    // 0.1 times mscale_all_dim; a decimal of few digits that went through fp32.
    const double mscale = std::round(*log * 1e7) / 1e6;
    rope["mscale"] = mscale;
    rope["mscale_all_dim"] = mscale;
  } else if (const auto attention = s.Number("rope.scaling.attn_factor")) {
    rope["attention_factor"] = *attention * (1.0 + 0.1 * std::log(*factor));
  }
  return rope;
}

/// Llama 3 writes its scaling as one divisor per frequency: 1 for the fast ones, the factor for the
/// slow ones, in between a blend that tells the original context.
void ReadRopeFreqs(Source& s, OrderedJson& rope) {
  const GgufTensor* t = s.model.FindTensor("rope_freqs.weight");
  if (t == nullptr || t->type->storage != Storage::kF32) return;
  constexpr double kLow = 1.0, kHigh = 4.0;  // of every model in use
  std::vector<double> divisors(t->bytes / sizeof(float));
  for (size_t i = 0; i < divisors.size(); ++i) {
    float divisor;
    std::memcpy(&divisor, t->data + i * sizeof(float), sizeof(float));
    divisors[i] = divisor;
  }
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  if (!(factor > 1.0)) return;
  const double theta = s.Number("rope.freq_base").value_or(10000.0);
  double fast = 0.0, original = 0.0;  // the longest wave that is not slowed
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double wave =
        2.0 * std::numbers::pi *
        std::pow(theta, static_cast<double>(i) / static_cast<double>(divisors.size()));
    if (divisors[i] == 1.0) fast = std::max(fast, wave);
    if (divisors[i] == 1.0 || divisors[i] == factor || original != 0.0) continue;
    const double blend = (1.0 / divisors[i] - 1.0 / factor) / (1.0 - 1.0 / factor);
    original = wave * (blend * (kHigh - kLow) + kLow);
  }
  if (original == 0.0) original = fast * kHigh + 1.0;  // nothing in between
  rope["rope_type"] = "llama3";
  rope["factor"] = factor;
  rope["low_freq_factor"] = kLow;
  rope["high_freq_factor"] = kHigh;
  rope["original_max_position_embeddings"] =
      static_cast<uint64_t>(std::clamp(std::round(original), 1.0, 1e8));
}

void FillGqa(Source& s, OrderedJson& c) {
  Set(c, "num_key_value_heads", s.Uint("attention.head_count_kv"));
  const auto key = s.Uint("attention.key_length");
  const uint64_t heads = std::max<uint64_t>(1, s.Uint("attention.head_count").value_or(1));
  const uint64_t head_dim = key.value_or(s.Uint("embedding_length").value_or(0) / heads);
  c["head_dim"] = head_dim;
  if (const auto rotated = s.Uint("rope.dimension_count"); rotated && head_dim > 0)
    c["partial_rotary_factor"] = static_cast<double>(*rotated) / static_cast<double>(head_dim);
  const bool bias = s.Dim("attn_q.bias", 0).has_value();
  c["attention_bias"] = bias;
  c["qkv_bias"] = bias;
  c["use_qk_norm"] = s.Dim("attn_q_norm.weight", 0).has_value();
  const auto window = s.Uint("attention.sliding_window");
  if (window && *window > 0) c["sliding_window"] = *window;
}

void FillMla(Source& s, OrderedJson& c) {
  // Newer files describe the absorbed form, with one key head, and keep the true sizes in *_mla.
  const auto key = s.Uint("attention.key_length_mla");
  const auto value = s.Uint("attention.value_length_mla");
  const auto rope = s.Uint("rope.dimension_count");
  const auto qk = key ? key : s.Uint("attention.key_length");
  c["num_key_value_heads"] = s.Uint("attention.head_count").value_or(0);
  Set(c, "kv_lora_rank", s.Uint("attention.kv_lora_rank"));
  const auto q_lora = s.Uint("attention.q_lora_rank");
  if (q_lora && *q_lora > 0) {
    c["q_lora_rank"] = *q_lora;
  } else {
    c["q_lora_rank"] = nullptr;
  }
  Set(c, "qk_rope_head_dim", rope);
  if (qk && rope && *qk > *rope) c["qk_nope_head_dim"] = *qk - *rope;
  Set(c, "v_head_dim", value ? value : s.Uint("attention.value_length"));
  c["rope_interleave"] = true;
}

void FillExperts(Source& s, OrderedJson& c, const char* count) {
  Set(c, count, s.Uint("expert_count"));
  Set(c, "num_experts_per_tok", s.Uint("expert_used_count"));
  const auto width = s.Uint("expert_feed_forward_length");
  Set(c, "moe_intermediate_size", width ? width : s.Dim("ffn_down_exps.weight", 0));
}

/// The gate and schedule of GLM and DeepSeek.
void FillDeepSeekMoe(Source& s, OrderedJson& c) {
  FillExperts(s, c, "n_routed_experts");
  c["n_shared_experts"] = s.Uint("expert_shared_count").value_or(0);
  c["first_k_dense_replace"] = s.Uint("leading_dense_block_count").value_or(0);
  c["norm_topk_prob"] = s.fields.Flag(s.Key("expert_weights_norm")).value_or(false);
  const double scale = s.Number("expert_weights_scale").value_or(0.0);
  c["routed_scaling_factor"] = scale == 0.0 ? 1.0 : scale;
  Set(c, "n_group", s.Uint("expert_group_count"));
  Set(c, "topk_group", s.Uint("expert_group_used_count"));
}

void FillIndexer(Source& s, OrderedJson& c) {
  Set(c, "index_n_heads", s.Uint("attention.indexer.head_count"));
  Set(c, "index_head_dim", s.Uint("attention.indexer.key_length"));
  Set(c, "index_topk", s.Uint("attention.indexer.top_k"));
}

bool IsSigmoid(Source& s) {
  const auto function = s.Uint("expert_gating_func");
  if (function && *function != 0) return *function == 2;
  return s.Dim("exp_probs_b.bias", 0) || s.Dim("exp_probs_b.weight", 0);  // before the key existed
}

std::string_view DeepSeek2Type(Source& s) { return IsSigmoid(s) ? "deepseek_v3" : "deepseek_v2"; }

void FillDeepSeek2(Source& s, OrderedJson& c) {
  FillMla(s, c);
  FillDeepSeekMoe(s, c);
  if (IsSigmoid(s)) {
    c["scoring_func"] = "sigmoid";
    c["topk_method"] = "noaux_tc";
  } else {
    c["scoring_func"] = "softmax";
    c["topk_method"] =
        s.Uint("expert_group_count").value_or(1) > 1 ? "group_limited_greedy" : "greedy";
  }
}

void FillDeepSeek32(Source& s, OrderedJson& c) {
  FillMla(s, c);
  FillDeepSeekMoe(s, c);
  FillIndexer(s, c);
}

void FillGlmDsa(Source& s, OrderedJson& c) {
  FillMla(s, c);
  FillDeepSeekMoe(s, c);
  FillIndexer(s, c);
  c["norm_topk_prob"] = s.fields.Flag(s.Key("expert_weights_norm")).value_or(true);
  c["indexer_rope_interleave"] = true;
  if (const GgufArray* types = s.fields.Array(s.Key("attention.indexer.types"), GgufType::kBool)) {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < types->count; ++i)
      list.push_back(std::get<bool>(types->At(i)) ? "full" : "shared");
    c["indexer_types"] = std::move(list);
  } else if (s.Uint("context_length").value_or(0) >= 1048576) {  // GLM-5.2 and later
    c["index_topk_freq"] = 4;
    c["index_skip_topk_offset"] = 3;
  }
}

void FillGlm4Moe(Source& s, OrderedJson& c) {
  FillGqa(s, c);
  FillDeepSeekMoe(s, c);
  c["norm_topk_prob"] = s.fields.Flag(s.Key("expert_weights_norm")).value_or(true);
}

void FillQwenMoe(Source& s, OrderedJson& c, bool norm) {
  FillGqa(s, c);
  FillExperts(s, c, "num_experts");
  const uint64_t dense = s.Uint("leading_dense_block_count").value_or(0);
  OrderedJson layers = OrderedJson::array();
  for (uint64_t i = 0; i < std::min<uint64_t>(dense, 4096); ++i) layers.push_back(i);
  c["mlp_only_layers"] = std::move(layers);
  c["norm_topk_prob"] = s.fields.Flag(s.Key("expert_weights_norm")).value_or(norm);
}
void FillQwen3Moe(Source& s, OrderedJson& c) { FillQwenMoe(s, c, true); }
void FillQwen2Moe(Source& s, OrderedJson& c) {
  FillQwenMoe(s, c, false);
  const auto width = s.Uint("expert_shared_feed_forward_length");
  Set(c, "shared_expert_intermediate_size", width ? width : s.Dim("ffn_down_shexp.weight", 0));
}

void FillOlmoe(Source& s, OrderedJson& c) {
  FillQwenMoe(s, c, false);
  Set(c, "intermediate_size", s.Dim("ffn_down_exps.weight", 0));
  Set(c, "clip_qkv", s.Number("attention.clamp_kqv"));
}

bool IsMixtral(Source& s) { return s.Uint("expert_count").value_or(0) > 0; }
std::string_view LlamaType(Source& s) { return IsMixtral(s) ? "mixtral" : "llama"; }
void FillLlama(Source& s, OrderedJson& c) {
  FillGqa(s, c);
  c["rope_interleave"] = true;  // rows of q and k were put in that order when the file was made
  ReadRopeFreqs(s, c["rope_parameters"]);
  if (IsMixtral(s)) FillExperts(s, c, "num_local_experts");
}

void FillGptOss(Source& s, OrderedJson& c) {
  FillGqa(s, c);
  FillExperts(s, c, "num_local_experts");
  Set(c, "intermediate_size", s.Dim("ffn_down_exps.weight", 0));
  c["rope_parameters"]["truncate"] = false;
  OrderedJson types = OrderedJson::array();
  for (uint64_t i = 0; i < std::min<uint64_t>(Layers(s), 4096); ++i)
    types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  c["layer_types"] = std::move(types);
}

template <const char* kName>
std::string_view Named(Source&) {
  return kName;
}
constexpr char kGlmMoeDsa[] = "glm_moe_dsa", kGlm4Moe[] = "glm4_moe",
               kDeepSeekV32[] = "deepseek_v32", kQwen3Moe[] = "qwen3_moe",
               kQwen2Moe[] = "qwen2_moe", kOlmoe[] = "olmoe", kGptOss[] = "gpt_oss",
               kQwen3[] = "qwen3";

/// THE LIST of architectures that GGUF files may name.
constexpr GgufArchitecture kArchitectures[] = {
    {"glm-dsa", Named<kGlmMoeDsa>, FillGlmDsa},
    {"glm4moe", Named<kGlm4Moe>, FillGlm4Moe},
    {"deepseek2", DeepSeek2Type, FillDeepSeek2},
    {"deepseek32", Named<kDeepSeekV32>, FillDeepSeek32},
    {"qwen3moe", Named<kQwen3Moe>, FillQwen3Moe},
    {"qwen2moe", Named<kQwen2Moe>, FillQwen2Moe},
    {"olmoe", Named<kOlmoe>, FillOlmoe},
    {"llama", LlamaType, FillLlama},
    {"gpt-oss", Named<kGptOss>, FillGptOss},
    {"qwen3", Named<kQwen3>, FillGqa},
};

const GgufArchitecture* FindGgufArchitecture(std::string_view name) {
  const auto* it = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                [&](const GgufArchitecture& a) { return a.name == name; });
  return it == std::end(kArchitectures) ? nullptr : it;
}

/// Sets s.architecture.
Result<const GgufArchitecture*> Architecture(Source& s) {
  const auto name = s.fields.Text("general.architecture");
  RETURN_IF_ERROR(s.fields.status());
  if (!name) {
    return MakeError(ErrorCode::kCorrupt, "{}: general.architecture is not there; wanted one of {}",
                     s.model.path(), GgufArchitectures());
  }
  const GgufArchitecture* found = FindGgufArchitecture(*name);
  if (found == nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: architecture '{}' is not supported; supported: {}", s.model.path(),
                     Printable(*name), GgufArchitectures());
  }
  s.architecture = *name;
  return found;
}

/// Tokens that end a turn: those that are named, and the usual ones by their text.
OrderedJson EndTokens(Source& s, uint64_t vocab) {
  std::set<uint64_t> ids;
  for (const auto* key : {"eos", "eot", "eom"}) {
    const auto id = s.fields.Uint(fmt::format("tokenizer.ggml.{}_token_id", key));
    if (id && *id < vocab) ids.insert(*id);
  }
  constexpr std::string_view kEnds[] = {"<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|eom_id|>",
                                        "<|return|>", "<|call|>",   "<end_of_turn>"};
  const GgufArray* tokens = s.fields.Array("tokenizer.ggml.tokens", GgufType::kString);
  const GgufArray* types = s.fields.Array("tokenizer.ggml.token_type", GgufType::kI32);
  for (size_t i = 0;
       tokens != nullptr && types != nullptr && i < std::min(tokens->count, types->count); ++i) {
    const bool control = std::get<int64_t>(types->At(i)) == 3;
    if (control && i < vocab &&
        std::find(std::begin(kEnds), std::end(kEnds), tokens->strings[i]) != std::end(kEnds))
      ids.insert(i);
  }
  return ids;
}

}  // namespace

std::string GgufArchitectures() {
  std::string list;
  for (const auto& a : kArchitectures)
    list += fmt::format("{}{}", list.empty() ? "" : ", ", a.name);
  return list;
}

Result<GgufFamily> GgufFamilyOf(const GgufModel& model) {
  Source s(model);
  ASSIGN_OR_RETURN(const GgufArchitecture* architecture, Architecture(s));
  GgufFamily family;
  family.model_type = architecture->model_type(s);
  family.heads = s.Uint("attention.head_count").value_or(0);
  RETURN_IF_ERROR(s.fields.status());
  return family;
}

Result<std::string> GgufConfigJson(const GgufModel& model) {
  Source s(model);
  ASSIGN_OR_RETURN(const GgufArchitecture* architecture, Architecture(s));
  OrderedJson c;
  c["model_type"] = architecture->model_type(s);
  const GgufTensor* embedding = model.FindTensor("token_embd.weight");
  if (embedding != nullptr) {
    c["vocab_size"] = embedding->dims[1];
    c["eos_token_id"] = EndTokens(s, embedding->dims[1]);
  }
  Set(c, "hidden_size", s.Uint("embedding_length"));
  Set(c, "intermediate_size", s.Uint("feed_forward_length"));
  if (s.Uint("block_count")) c["num_hidden_layers"] = Layers(s);
  Set(c, "num_nextn_predict_layers", s.Uint("nextn_predict_layers"));
  Set(c, "num_attention_heads", s.Uint("attention.head_count"));
  Set(c, "rms_norm_eps", s.Number("attention.layer_norm_rms_epsilon"));
  Set(c, "max_position_embeddings", s.Uint("context_length"));
  c["rope_parameters"] = Rope(s);
  c["tie_word_embeddings"] = !s.Has("output.weight");
  c["hidden_act"] = "silu";
  architecture->fill(s, c);
  RETURN_IF_ERROR(s.fields.status());
  return c.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace carpool
