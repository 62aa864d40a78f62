#include "lab/synthetic_model.h"

#include <algorithm>

#include "ops/experts.h"

namespace carpool {
namespace {

constexpr SyntheticShape kGlm5{"glm-5", 3, 75, 154880};

/// GLM-5's config.json with fewer layers.
std::string ConfigJson(size_t layers, size_t experts) {
  return fmt::format(
      R"({{"model_type":"glm_moe_dsa","vocab_size":{},"hidden_size":6144,"intermediate_size":12288,
"moe_intermediate_size":2048,"num_hidden_layers":{},"num_attention_heads":64,
"num_key_value_heads":64,"q_lora_rank":2048,"kv_lora_rank":512,"qk_nope_head_dim":192,
"qk_rope_head_dim":64,"v_head_dim":256,"n_routed_experts":{},"n_shared_experts":1,
"num_experts_per_tok":8,"routed_scaling_factor":2.5,"norm_topk_prob":true,
"first_k_dense_replace":1,"index_topk":2048,"index_n_heads":32,"index_head_dim":128,
"rms_norm_eps":1e-5,"scoring_func":"sigmoid","topk_method":"noaux_tc","rope_interleave":true,
"indexer_rope_interleave":true,"hidden_act":"silu","n_group":1,"topk_group":1,
"rope_parameters":{{"rope_type":"default","rope_theta":1000000.0}},
"max_position_embeddings":202752,"tie_word_embeddings":false,"attention_bias":false}})",
      kSyntheticVocab, layers, experts);
}

Result<ModelConfig> Config(const SyntheticOptions& o) {
  ASSIGN_OR_RETURN(const SyntheticShape shape, FindSyntheticShape(o.shape));
  return ParseModelConfig(ConfigJson(1 + o.moe_layers, o.experts == 0 ? 256 : o.experts),
                          std::string(shape.name));
}

size_t Bytes(size_t rows, size_t cols, WeightFormat format) {
  StoredMatrix m;
  m.rows = rows;
  m.cols = cols;
  return PackedMatrix::PackedBytes(m, format);
}

size_t AttentionBytes(const ModelConfig& c, WeightFormat f) {
  const size_t heads = c.num_heads, qk = c.mla.nope_dim + c.mla.rope_dim;
  return Bytes(c.mla.q_lora_rank, c.hidden, f) + Bytes(heads * qk, c.mla.q_lora_rank, f) +
         Bytes(c.mla.kv_lora_rank + c.mla.rope_dim, c.hidden, f) +
         Bytes(heads * (c.mla.nope_dim + c.mla.v_dim), c.mla.kv_lora_rank, f) +
         Bytes(c.hidden, heads * c.mla.v_dim, f) +
         Bytes(c.mla.index_heads * c.mla.index_dim, c.mla.q_lora_rank, WeightFormat::kBF16);
}

}  // namespace

Result<SyntheticShape> FindSyntheticShape(std::string_view name) {
  if (name == kGlm5.name) return kGlm5;
  return MakeError(ErrorCode::kInvalidArgument,
                   "--shape: a stack of layers can be made of glm-5 only, got '{}'; `bench moe` "
                   "has the MoE layers of the others",
                   name);
}

Result<size_t> SyntheticModel::LayerBytes(const SyntheticOptions& o) {
  ASSIGN_OR_RETURN(const ModelConfig c, Config(o));
  const size_t expert = 2 * Bytes(c.expert_width, c.hidden, o.expert_format) +
                        Bytes(c.hidden, c.expert_width, o.expert_format);
  return (c.gate.num_experts + c.num_shared_experts) * expert +
         AttentionBytes(c, o.load.dense_format.value_or(WeightFormat::kBF16));
}

Result<size_t> SyntheticModel::OtherBytes(const SyntheticOptions& o) {
  ASSIGN_OR_RETURN(const ModelConfig c, Config(o));
  const WeightFormat dense = o.load.dense_format.value_or(WeightFormat::kBF16);
  const size_t packed = AttentionBytes(c, dense) + 3 * Bytes(c.dense_width, c.hidden, dense) +
                        Bytes(c.vocab_size, c.hidden, dense);
  // The sources of one layer stay in memory as well.
  return packed + AttentionBytes(c, WeightFormat::kBF16) +
         2 * Bytes(c.dense_width, c.hidden, WeightFormat::kBF16) +
         Bytes(c.vocab_size, c.hidden, WeightFormat::kBF16);
}

size_t SyntheticModel::CacheBytesPerToken() {
  constexpr size_t kEntry = 512 + 64, kIndex = 128;
  return (kEntry + kIndex) * sizeof(float);
}

void SyntheticModel::AddTensor(const std::string& name, Dtype dtype,
                               std::initializer_list<uint64_t> shape, const std::byte* data,
                               size_t bytes) {
  TensorInfo t;
  t.name = names_.emplace_back(name);
  t.dtype = dtype;
  t.ndim = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  t.data = data;
  t.bytes = bytes;
  tensors_.push_back(t);
}

void SyntheticModel::AddVector(const std::string& name, size_t n) {
  AddTensor(name, Dtype::kF32, {n}, reinterpret_cast<const std::byte*>(ones_.data()), n * 4);
}

void SyntheticModel::AddLinear(const std::string& module, size_t rows, size_t cols,
                               WeightFormat format) {
  const Storage storage = format == WeightFormat::kNVFP4   ? Storage::kNVFP4
                          : format == WeightFormat::kMXFP4 ? Storage::kMXFP4
                          : format == WeightFormat::kFP8   ? Storage::kF8E4M3
                                                           : Storage::kBF16;
  auto it = std::find_if(matrices_.begin(), matrices_.end(), [&](const OwnedMatrix& m) {
    return m.view.rows == rows && m.view.cols == cols && m.view.storage == storage;
  });
  if (it == matrices_.end()) {
    matrices_.push_back(RandomMatrix(storage == Storage::kBF16 ? WeightFormat::kBF16 : format, rows,
                                     cols, ++seed_));
    it = std::prev(matrices_.end());
  }
  const StoredMatrix& m = it->view;
  const std::byte* global = reinterpret_cast<const std::byte*>(&m.global_scale);
  switch (storage) {
    case Storage::kNVFP4:
      AddTensor(module + ".weight", Dtype::kU8, {rows, cols / 2}, m.data, m.data_bytes);
      AddTensor(module + ".weight_scale", Dtype::kF8E4M3, {rows, cols / 16}, m.scales,
                rows * (cols / 16));
      AddTensor(module + ".weight_scale_2", Dtype::kF32, {1}, global, 4);
      break;
    case Storage::kMXFP4:
      AddTensor(module + ".weight_packed", Dtype::kU8, {rows, cols / 2}, m.data, m.data_bytes);
      AddTensor(module + ".weight_scale", Dtype::kU8, {rows, cols / 32}, m.scales,
                rows * (cols / 32));
      break;
    case Storage::kF8E4M3: {
      const size_t r = DivCeil(rows, size_t{128}), c = DivCeil(cols, size_t{128});
      AddTensor(module + ".weight", Dtype::kF8E4M3, {rows, cols}, m.data, m.data_bytes);
      AddTensor(module + ".weight_scale_inv", Dtype::kF32, {r, c}, m.scales, r * c * 4);
      break;
    }
    default:
      AddTensor(module + ".weight", Dtype::kBF16, {rows, cols}, m.data, m.data_bytes);
  }
}

void SyntheticModel::AddLayer(const ModelConfig& c, size_t layer, const SyntheticOptions& o) {
  constexpr WeightFormat kDense = WeightFormat::kBF16;
  const std::string at = fmt::format("model.layers.{}", layer), attention = at + ".self_attn";
  AddVector(at + ".input_layernorm.weight", c.hidden);
  AddVector(at + ".post_attention_layernorm.weight", c.hidden);
  AddLinear(attention + ".q_a_proj", c.mla.q_lora_rank, c.hidden, kDense);
  AddVector(attention + ".q_a_layernorm.weight", c.mla.q_lora_rank);
  AddLinear(attention + ".q_b_proj", c.num_heads * (c.mla.nope_dim + c.mla.rope_dim),
            c.mla.q_lora_rank, kDense);
  AddLinear(attention + ".kv_a_proj_with_mqa", c.mla.kv_lora_rank + c.mla.rope_dim, c.hidden,
            kDense);
  AddVector(attention + ".kv_a_layernorm.weight", c.mla.kv_lora_rank);
  AddLinear(attention + ".kv_b_proj", c.num_heads * (c.mla.nope_dim + c.mla.v_dim),
            c.mla.kv_lora_rank, kDense);
  AddLinear(attention + ".o_proj", c.hidden, c.num_heads * c.mla.v_dim, kDense);
  const std::string indexer = attention + ".indexer";
  AddLinear(indexer + ".wq_b", c.mla.index_heads * c.mla.index_dim, c.mla.q_lora_rank, kDense);
  AddLinear(indexer + ".wk", c.mla.index_dim, c.hidden, kDense);
  AddVector(indexer + ".k_norm.weight", c.mla.index_dim);
  AddVector(indexer + ".k_norm.bias", c.mla.index_dim);
  AddLinear(indexer + ".weights_proj", c.mla.index_heads, c.hidden, kDense);
  const auto mlp = [&](const std::string& module, size_t width, WeightFormat format) {
    AddLinear(module + ".gate_proj", width, c.hidden, format);
    AddLinear(module + ".up_proj", width, c.hidden, format);
    AddLinear(module + ".down_proj", c.hidden, width, format);
  };
  if (c.mlp[layer] == MlpKind::kDense) return mlp(at + ".mlp", c.dense_width, kDense);
  AddLinear(at + ".mlp.gate", c.gate.num_experts, c.hidden, kDense);
  AddVector(at + ".mlp.gate.e_score_correction_bias", c.gate.num_experts);
  for (size_t e = 0; e < c.gate.num_experts; ++e)
    mlp(fmt::format("{}.mlp.experts.{}", at, e), c.expert_width, o.expert_format);
  mlp(at + ".mlp.shared_experts", c.expert_width * c.num_shared_experts, o.expert_format);
}

Result<std::unique_ptr<SyntheticModel>> SyntheticModel::Make(const SyntheticOptions& o,
                                                             ThreadPool& pool) {
  ASSIGN_OR_RETURN(const ModelConfig config, Config(o));
  auto made = std::make_unique<SyntheticModel>();
  made->seed_ = o.seed;
  made->ones_.assign(std::max(config.hidden, config.mla.q_lora_rank), 1.0f);
  made->AddLinear("model.embed_tokens", config.vocab_size, config.hidden, WeightFormat::kBF16);
  made->AddLinear("lm_head", config.vocab_size, config.hidden, WeightFormat::kBF16);
  made->AddVector("model.norm.weight", config.hidden);
  for (size_t layer = 0; layer < config.num_layers; ++layer) made->AddLayer(config, layer, o);
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::FromTensors(std::move(made->tensors_)));
  ASSIGN_OR_RETURN(made->model_, Model::Build(config, std::move(checkpoint), pool, o.load));
  return made;
}

}  // namespace carpool
