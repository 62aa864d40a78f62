#include "models/model_builder.h"

#include "base/log.h"
#include "layers/gqa_attention.h"
#include "layers/mla_attention.h"
#include "layers/mlp.h"
#include "models/model_weights.h"

namespace carpool {
namespace {

MlaShape ShapeOfMla(const ModelConfig& c) {
  return {.hidden = c.hidden,
          .heads = c.num_heads,
          .q_lora_rank = c.mla.q_lora_rank,
          .kv_lora_rank = c.mla.kv_lora_rank,
          .nope_dim = c.mla.nope_dim,
          .rope_dim = c.mla.rope_dim,
          .v_dim = c.mla.v_dim,
          .latent_norm_eps = c.mla.latent_norm_eps,
          .softmax_scale = c.softmax_scale,
          .rope_interleaved = c.rope_interleave};
}

GqaShape ShapeOfGqa(const ModelConfig& c, size_t layer) {
  return {.heads = c.num_heads,
          .kv_heads = c.gqa.kv_heads,
          .head_dim = c.gqa.head_dim,
          .rope_dim = c.rope.dim,
          .rope_interleaved = c.rope_interleave,
          .qk_norm = c.gqa.qk_norm,
          .norm_eps = c.rms_eps,
          .softmax_scale = c.softmax_scale,
          .clip = c.gqa.clip,
          .window = c.gqa.window.empty() ? 0 : c.gqa.window[layer]};
}

/// Splits kv_b [heads * (nope + v), kv_lora] into the absorbed per-head weights. They stay bf16
/// when kv_b is.
void SplitKvB(const StoredMatrix& kv_b, const MlaShape& s, PackedMlaWeights& out) {
  const size_t rank = s.kv_lora_rank, per_head = s.nope_dim + s.v_dim;
  std::vector<float> head(per_head * rank), transposed(rank * s.nope_dim);
  for (size_t h = 0; h < s.heads; ++h) {
    for (size_t r = 0; r < per_head; ++r)
      DequantizeRow(kv_b, h * per_head + r, head.data() + r * rank);
    for (size_t n = 0; n < s.nope_dim; ++n) {
      for (size_t c = 0; c < rank; ++c) transposed[c * s.nope_dim + n] = head[n * rank + c];
    }
    const WeightFormat format =
        kv_b.storage == Storage::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32;
    out.w_uk.push_back(PackedMatrix::FromFloats(transposed.data(), rank, s.nope_dim, format));
    out.w_uv.push_back(
        PackedMatrix::FromFloats(head.data() + s.nope_dim * rank, s.v_dim, rank, format));
  }
}

Result<std::unique_ptr<Attention>> BuildMla(size_t layer, const ModelConfig& c,
                                            const LayerWeights& w) {
  PackedMlaWeights packed;
  const MlaWeights& a = *w.mla;
  if (c.mla.q_lora_rank != 0) {
    ASSIGN_OR_RETURN(packed.q_a, PackedMatrix::Pack(a.q_a));
  }
  ASSIGN_OR_RETURN(packed.q_b, PackedMatrix::Pack(a.q_b));
  ASSIGN_OR_RETURN(packed.kv_a, PackedMatrix::Pack(a.kv_a));
  ASSIGN_OR_RETURN(packed.o, PackedMatrix::Pack(a.o));
  packed.q_a_norm = a.q_a_norm;
  packed.kv_a_norm = a.kv_a_norm;
  packed.q_a_bias = a.q_a_bias;
  packed.kv_a_bias = a.kv_a_bias;
  packed.o_bias = a.o_bias;
  const MlaShape shape = ShapeOfMla(c);
  RETURN_IF_ERROR(ValidateScales(a.kv_b));
  SplitKvB(a.kv_b, shape, packed);

  std::unique_ptr<DsaIndexer> indexer;
  if (w.indexer) {
    PackedIndexerWeights index;
    ASSIGN_OR_RETURN(index.wq_b, PackedMatrix::Pack(w.indexer->wq_b));
    ASSIGN_OR_RETURN(index.wk, PackedMatrix::Pack(w.indexer->wk));
    ASSIGN_OR_RETURN(index.weights_proj, PackedMatrix::Pack(w.indexer->weights_proj));
    index.k_norm = w.indexer->k_norm;
    index.k_norm_bias = w.indexer->k_norm_bias;
    indexer =
        std::make_unique<DsaIndexer>(layer, c.mla.index_heads, c.mla.index_dim, c.mla.index_topk,
                                     c.mla.index_rope_interleave, std::move(index));
  }
  const bool uses_selection = c.mla.Indexer(layer) != IndexerKind::kNone;
  return std::unique_ptr<Attention>(
      new MlaAttention(layer, shape, std::move(packed), std::move(indexer), uses_selection));
}

Result<std::unique_ptr<Attention>> BuildGqa(size_t layer, const ModelConfig& c, GqaWeights& w) {
  PackedGqaWeights packed;
  ASSIGN_OR_RETURN(packed.q, PackedMatrix::Pack(w.q));
  ASSIGN_OR_RETURN(packed.k, PackedMatrix::Pack(w.k));
  ASSIGN_OR_RETURN(packed.v, PackedMatrix::Pack(w.v));
  ASSIGN_OR_RETURN(packed.o, PackedMatrix::Pack(w.o));
  packed.q_bias = std::move(w.q_bias);
  packed.k_bias = std::move(w.k_bias);
  packed.v_bias = std::move(w.v_bias);
  packed.o_bias = std::move(w.o_bias);
  packed.q_norm = std::move(w.q_norm);
  packed.k_norm = std::move(w.k_norm);
  packed.sinks = std::move(w.sinks);
  return std::unique_ptr<Attention>(
      new GqaAttention(layer, ShapeOfGqa(c, layer), std::move(packed)));
}

Result<std::unique_ptr<Mlp>> BuildDense(const GatedMlpWeights& w) {
  ExpertBank::Expert packed;
  ASSIGN_OR_RETURN(packed.gate, PackedMatrix::Pack(w.gate));
  ASSIGN_OR_RETURN(packed.up, PackedMatrix::Pack(w.up));
  ASSIGN_OR_RETURN(packed.down, PackedMatrix::Pack(w.down));
  packed.gate_bias = w.gate_bias;
  packed.up_bias = w.up_bias;
  packed.down_bias = w.down_bias;
  return std::unique_ptr<Mlp>(new DenseMlp(std::move(packed)));
}

Result<std::unique_ptr<Mlp>> BuildMoe(size_t moe_layer, const ModelConfig& c, MoeWeights& w,
                                      ThreadPool& pool, size_t& bytes_per_expert) {
  PackedRouter router;
  ASSIGN_OR_RETURN(router.weight, PackedMatrix::Pack(w.router));
  if (w.shared_gate.rows != 0) {
    ASSIGN_OR_RETURN(router.shared_gate, PackedMatrix::Pack(w.shared_gate));
  }
  router.bias = std::move(w.router_bias);
  router.correction_bias = std::move(w.correction_bias);
  ASSIGN_OR_RETURN(ExpertBank bank,
                   ExpertBank::Pack(w.experts, w.shared ? &*w.shared : nullptr, pool, {}, c.glu));
  bytes_per_expert = bank.bytes_per_expert();
  return std::unique_ptr<Mlp>(new MoeBlock(moe_layer, std::move(router), std::move(bank)));
}

/// Floats of the cache per token.
size_t EntryWidth(const ModelConfig& c) {
  return c.attention == AttentionKind::kMla ? ShapeOfMla(c).EntryWidth()
                                            : ShapeOfGqa(c, 0).EntryWidth();
}

void LogReport(const LoadReport& report) {
  for (const std::string& warning : report.warnings) LogWarning("{}", warning);
  LogInfo("{} tensors, {} parameters; {} tensors unused; not there: {}", report.tensors_bound,
          report.parameters, report.unused.size(),
          report.missing_optional.empty()
              ? "nothing"
              : fmt::format("{}", fmt::join(report.missing_optional, ", ")));
}

}  // namespace

Result<ModelParts> BuildModel(const ModelConfig& config, const Checkpoint& checkpoint,
                              ThreadPool& pool, const LoadOptions& options) {
  TensorBinder binder(checkpoint);
  ASSIGN_OR_RETURN(ModelWeights weights, BindModel(config, binder));
  LogReport(binder.report());
  ModelParts parts;
  parts.config = config;
  parts.report = binder.report();
  size_t moe_layer = 0;
  for (size_t i = 0; i < config.num_layers; ++i) {
    LayerWeights& w = weights.layers[i];
    DecoderLayer layer;
    layer.input_norm = std::move(w.input_norm);
    layer.post_attention_norm = std::move(w.post_attention_norm);
    ASSIGN_OR_RETURN(layer.attention, w.mla ? BuildMla(i, config, w) : BuildGqa(i, config, *w.gqa));
    if (w.dense) {
      ASSIGN_OR_RETURN(layer.mlp, BuildDense(*w.dense));
    } else {
      ASSIGN_OR_RETURN(layer.mlp,
                       BuildMoe(moe_layer++, config, *w.moe, pool, parts.bytes_per_expert));
    }
    parts.layers.push_back(std::move(layer));
    parts.kv_layout.entry_width.push_back(EntryWidth(config));
    parts.kv_layout.index_dim.push_back(w.indexer ? config.mla.index_dim : 0);
    w = {};  // vectors of a layer that is packed
    if (options.progress) options.progress(i + 1, config.num_layers);
  }
  parts.embedding = weights.embed_tokens;
  RETURN_IF_ERROR(ValidateScales(parts.embedding));
  parts.final_norm = std::move(weights.norm);
  ASSIGN_OR_RETURN(parts.head, PackedMatrix::Pack(weights.lm_head));
  return parts;
}

Result<std::unique_ptr<Model>> Model::Load(const std::string& dir, ThreadPool& pool,
                                           const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
  ASSIGN_OR_RETURN(ModelParts parts, BuildModel(config, checkpoint, pool, options));
  return std::make_unique<Model>(std::move(checkpoint), std::move(parts));
}

}  // namespace carpool
