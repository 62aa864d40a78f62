// glm_moe_dsa: GLM-5, GLM-5.1, GLM-5.2 (Hugging Face GlmMoeDsaForCausalLM).
//
//   x ─┬─ norm ─ MLA over the keys the DSA indexer selects ─┬─ norm ─ MoE (first layers: dense MLP)
//   ─┬─► …
//      └─────────────────────────── + ─────────────────────┴────────────────── +
//      ───────────────────┘
#include <cmath>

#include "base/log.h"
#include "layers/mla_attention.h"
#include "layers/mlp.h"
#include "models/all_models.h"
#include "models/glm_moe_dsa_weights.h"

namespace carpool {
namespace {

MlaShape Shape(const ModelConfig& c) {
  return {.hidden = c.hidden,
          .heads = c.num_heads,
          .q_lora_rank = c.q_lora_rank,
          .kv_lora_rank = c.kv_lora_rank,
          .nope_dim = c.qk_nope_dim,
          .rope_dim = c.qk_rope_dim,
          .v_dim = c.v_dim,
          .latent_norm_eps = c.latent_norm_eps,
          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(c.qk_nope_dim + c.qk_rope_dim)),
          .rope_interleaved = c.rope_interleave};
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

Result<std::unique_ptr<Attention>> BuildAttention(size_t layer, const ModelConfig& c,
                                                  const GlmMoeDsaLayerWeights& w) {
  PackedMlaWeights packed;
  const MlaWeights& a = w.attention;
  if (c.q_lora_rank != 0) {
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
  const MlaShape shape = Shape(c);
  RETURN_IF_ERROR(ValidateScales(a.kv_b));
  SplitKvB(a.kv_b, shape, packed);

  std::unique_ptr<DsaIndexer> indexer;
  if (c.indexer[layer] == IndexerKind::kFull) {
    PackedIndexerWeights index;
    ASSIGN_OR_RETURN(index.wq_b, PackedMatrix::Pack(w.indexer->wq_b));
    ASSIGN_OR_RETURN(index.wk, PackedMatrix::Pack(w.indexer->wk));
    ASSIGN_OR_RETURN(index.weights_proj, PackedMatrix::Pack(w.indexer->weights_proj));
    index.k_norm = w.indexer->k_norm;
    index.k_norm_bias = w.indexer->k_norm_bias;
    indexer = std::make_unique<DsaIndexer>(layer, c.index_heads, c.index_dim, c.index_topk,
                                           c.index_rope_interleave, std::move(index));
  }
  return std::unique_ptr<Attention>(new MlaAttention(
      layer, shape, std::move(packed), std::move(indexer), c.indexer[layer] != IndexerKind::kNone));
}

Result<std::unique_ptr<Mlp>> BuildMlp(size_t moe_layer, const GlmMoeDsaLayerWeights& w,
                                      ThreadPool& pool, size_t& bytes_per_expert) {
  if (w.dense) {
    ASSIGN_OR_RETURN(PackedMatrix gate, PackedMatrix::Pack(w.dense->gate));
    ASSIGN_OR_RETURN(PackedMatrix up, PackedMatrix::Pack(w.dense->up));
    ASSIGN_OR_RETURN(PackedMatrix down, PackedMatrix::Pack(w.dense->down));
    return std::unique_ptr<Mlp>(new DenseMlp(std::move(gate), std::move(up), std::move(down)));
  }
  const MoeWeights& m = *w.moe;
  ASSIGN_OR_RETURN(PackedMatrix router, PackedMatrix::Pack(m.router));
  ASSIGN_OR_RETURN(ExpertBank bank,
                   ExpertBank::Pack(m.experts, m.shared ? &*m.shared : nullptr, pool));
  bytes_per_expert = bank.bytes_per_expert();
  return std::unique_ptr<Mlp>(
      new MoeBlock(moe_layer, std::move(router), m.correction_bias, std::move(bank)));
}

}  // namespace

Result<ModelParts> BuildGlmMoeDsa(const ModelConfig& config, const Checkpoint& checkpoint,
                                  ThreadPool& pool, const LoadOptions& options) {
  TensorBinder binder(checkpoint);
  ASSIGN_OR_RETURN(GlmMoeDsaWeights weights, BindGlmMoeDsa(config, binder));
  const LoadReport& report = binder.report();
  for (const std::string& warning : report.warnings) LogWarning("{}", warning);
  LogInfo("{} tensors, {} parameters; {} tensors unused; not there: {}", report.tensors_bound,
          report.parameters, report.unused.size(),
          report.missing_optional.empty()
              ? "nothing"
              : fmt::format("{}", fmt::join(report.missing_optional, ", ")));

  ModelParts parts;
  parts.config = config;
  parts.report = binder.report();
  size_t moe_layer = 0;
  for (size_t i = 0; i < config.num_layers; ++i) {
    GlmMoeDsaLayerWeights& w = weights.layers[i];
    DecoderLayer layer;
    layer.input_norm = std::move(w.input_norm);
    layer.post_attention_norm = std::move(w.post_attention_norm);
    ASSIGN_OR_RETURN(layer.attention, BuildAttention(i, config, w));
    ASSIGN_OR_RETURN(layer.mlp, BuildMlp(moe_layer, w, pool, parts.bytes_per_expert));
    if (config.mlp[i] == MlpKind::kSparse) ++moe_layer;
    parts.layers.push_back(std::move(layer));
    parts.kv_layout.entry_width.push_back(Shape(config).EntryWidth());
    parts.kv_layout.index_dim.push_back(config.indexer[i] == IndexerKind::kFull ? config.index_dim
                                                                                : 0);
    if (options.progress) options.progress(i + 1, config.num_layers);
  }
  parts.embedding = weights.embed_tokens;
  RETURN_IF_ERROR(ValidateScales(parts.embedding));
  parts.final_norm = std::move(weights.norm);
  ASSIGN_OR_RETURN(parts.head, PackedMatrix::Pack(weights.lm_head));
  return parts;
}

}  // namespace carpool
