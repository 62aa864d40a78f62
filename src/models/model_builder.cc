#include "models/model_builder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "base/memory_info.h"
#include "layers/gqa_attention.h"
#include "layers/mla_attention.h"
#include "layers/mlp.h"
#include "models/model_weights.h"
#include "weights/content_key.h"

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
/// when kv_b is, and become int8 blocks where all dense weights do.
Status SplitKvB(const StoredMatrix& kv_b, const MlaShape& s, const LoadOptions& options,
                PackedMlaWeights& out) {
  RETURN_IF_ERROR(ValidateScales(kv_b));
  const WeightFormat format = options.dense_format.value_or(
      kv_b.storage == Storage::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32);
  const size_t rank = s.kv_lora_rank, per_head = s.nope_dim + s.v_dim;
  std::vector<float> head(per_head * rank), transposed(rank * s.nope_dim);
  for (size_t h = 0; h < s.heads; ++h) {
    for (size_t r = 0; r < per_head; ++r)
      DequantizeRow(kv_b, h * per_head + r, head.data() + r * rank);
    if (format == WeightFormat::kQ8 &&
        !std::all_of(head.begin(), head.end(), [](float w) { return std::isfinite(w); })) {
      return MakeError(
          ErrorCode::kCorrupt,
          "{}: head {} holds a weight that is not finite, which int8 blocks cannot hold", kv_b.name,
          h);
    }
    for (size_t n = 0; n < s.nope_dim; ++n) {
      for (size_t c = 0; c < rank; ++c) transposed[c * s.nope_dim + n] = head[n * rank + c];
    }
    out.w_uk.push_back(PackedMatrix::FromFloats(transposed.data(), rank, s.nope_dim, format));
    out.w_uv.push_back(
        PackedMatrix::FromFloats(head.data() + s.nope_dim * rank, s.v_dim, rank, format));
  }
  return {};
}

/// Packs the matrices that LoadOptions::dense_format is about.
class DensePacker {
 public:
  DensePacker(const LoadOptions& options, ThreadPool& pool) : options_(options), pool_(pool) {}
  Result<PackedMatrix> operator()(const StoredMatrix& m) const {
    return PackedMatrix::Pack(m, options_.DenseFormat(m), &pool_);
  }
  const LoadOptions& options() const { return options_; }

 private:
  const LoadOptions& options_;
  ThreadPool& pool_;
};

Result<std::unique_ptr<Attention>> BuildMla(size_t layer, const ModelConfig& c,
                                            const LayerWeights& w, const DensePacker& pack) {
  PackedMlaWeights packed;
  const MlaWeights& a = *w.mla;
  if (c.mla.q_lora_rank != 0) {
    ASSIGN_OR_RETURN(packed.q_a, pack(a.q_a));
  }
  ASSIGN_OR_RETURN(packed.q_b, pack(a.q_b));
  ASSIGN_OR_RETURN(packed.kv_a, pack(a.kv_a));
  ASSIGN_OR_RETURN(packed.o, pack(a.o));
  packed.q_a_norm = a.q_a_norm;
  packed.kv_a_norm = a.kv_a_norm;
  packed.q_a_bias = a.q_a_bias;
  packed.kv_a_bias = a.kv_a_bias;
  packed.o_bias = a.o_bias;
  const MlaShape shape = ShapeOfMla(c);
  RETURN_IF_ERROR(SplitKvB(a.kv_b, shape, pack.options(), packed));

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

Result<std::unique_ptr<Attention>> BuildGqa(size_t layer, const ModelConfig& c, GqaWeights& w,
                                            const DensePacker& pack) {
  PackedGqaWeights packed;
  ASSIGN_OR_RETURN(packed.q, pack(w.q));
  ASSIGN_OR_RETURN(packed.k, pack(w.k));
  ASSIGN_OR_RETURN(packed.v, pack(w.v));
  ASSIGN_OR_RETURN(packed.o, pack(w.o));
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

Result<std::unique_ptr<Mlp>> BuildDense(const GatedMlpWeights& w, const DensePacker& pack) {
  ExpertBank::Expert packed;
  ASSIGN_OR_RETURN(packed.gate, pack(w.gate));
  ASSIGN_OR_RETURN(packed.up, pack(w.up));
  ASSIGN_OR_RETURN(packed.down, pack(w.down));
  packed.gate_bias = w.gate_bias;
  packed.up_bias = w.up_bias;
  packed.down_bias = w.down_bias;
  return std::unique_ptr<Mlp>(new DenseMlp(std::move(packed)));
}

Result<std::unique_ptr<Mlp>> BuildMoe(size_t moe_layer, MoeWeights& w, ThreadPool& pool,
                                      const ExpertPackOptions& options, size_t& bytes_per_expert) {
  PackedRouter router;
  ASSIGN_OR_RETURN(router.weight, PackedMatrix::Pack(w.router));
  if (w.shared_gate.rows != 0) {
    ASSIGN_OR_RETURN(router.shared_gate, PackedMatrix::Pack(w.shared_gate));
  }
  router.bias = std::move(w.router_bias);
  router.correction_bias = std::move(w.correction_bias);
  ASSIGN_OR_RETURN(ExpertBank bank,
                   ExpertBank::Pack(w.experts, w.shared ? &*w.shared : nullptr, pool, options));
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

/// Packing makes a copy of every weight: said before the first one is made.
Status CheckMemory(const Checkpoint& checkpoint, const std::string& dir) {
  size_t wanted = 0;
  for (const TensorInfo& t : checkpoint.tensors())
    wanted += t.dtype == Dtype::kF16 ? 2 * t.bytes : t.bytes;  // f16 becomes f32
  const size_t available = AvailableMemory();
  if (wanted <= available) return {};
  return MakeError(ErrorCode::kExhausted,
                   "{}: packing its weights needs {:.1f} GB, {:.1f} GB are free; free memory, or "
                   "make the model smaller with `carpool quantize`",
                   dir, static_cast<double>(wanted) * 1e-9, static_cast<double>(available) * 1e-9);
}

}  // namespace

Result<ModelParts> BuildModel(const ModelConfig& config, const Checkpoint& checkpoint,
                              ThreadPool& pool, const LoadOptions& options) {
  TensorBinder binder(checkpoint);
  ASSIGN_OR_RETURN(ModelWeights weights, BindModel(config, binder));
  LogReport(binder.report());
  const DensePacker pack(options, pool);
  ModelParts parts;
  parts.config = config;
  parts.report = binder.report();
  // Pages of the files that have been read count as this process' memory until they are given back.
  // The head, one large matrix, is packed while little else is there.
  const auto give_back = [&] { checkpoint.ReleasePages(); };
  const auto prefetch = [&](size_t layer) {
    if (layer < config.num_layers) checkpoint.Prefetch(fmt::format("model.layers.{}.", layer));
  };
  checkpoint.Prefetch(config.tie_embeddings ? "model.embed_tokens." : "lm_head.");
  prefetch(0);
  ASSIGN_OR_RETURN(parts.head, pack(weights.lm_head));
  give_back();
  const ExpertPackOptions expert_options{
      .glu = config.glu, .cache = options.cache, .after_portion = give_back};
  size_t moe_layer = 0;
  for (size_t i = 0; i < config.num_layers; ++i) {
    prefetch(i + 1);  // the disk works while this layer is packed
    LayerWeights& w = weights.layers[i];
    DecoderLayer layer;
    layer.input_norm = std::move(w.input_norm);
    layer.post_attention_norm = std::move(w.post_attention_norm);
    ASSIGN_OR_RETURN(layer.attention,
                     w.mla ? BuildMla(i, config, w, pack) : BuildGqa(i, config, *w.gqa, pack));
    if (w.dense) {
      ASSIGN_OR_RETURN(layer.mlp, BuildDense(*w.dense, pack));
    } else {
      ASSIGN_OR_RETURN(layer.mlp,
                       BuildMoe(moe_layer++, *w.moe, pool, expert_options, parts.bytes_per_expert));
    }
    parts.layers.push_back(std::move(layer));
    parts.kv_layout.entry_width.push_back(EntryWidth(config));
    parts.kv_layout.index_dim.push_back(w.indexer ? config.mla.index_dim : 0);
    w = {};  // vectors of a layer that is packed
    give_back();
    if (options.progress) options.progress(i + 1, config.num_layers);
  }
  parts.embedding = weights.embed_tokens;
  RETURN_IF_ERROR(ValidateScales(parts.embedding));
  parts.final_norm = std::move(weights.norm);
  return parts;
}

Result<std::unique_ptr<Model>> Model::Build(const ModelConfig& config, Checkpoint checkpoint,
                                            ThreadPool& pool, const LoadOptions& options) {
  ASSIGN_OR_RETURN(ModelParts parts, BuildModel(config, checkpoint, pool, options));
  return std::make_unique<Model>(std::move(checkpoint), std::move(parts));
}

Result<std::unique_ptr<Model>> Model::Load(const std::string& dir, ThreadPool& pool,
                                           const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
  RETURN_IF_ERROR(CheckMemory(checkpoint, dir));
  if (!options.panel_cache) return Build(config, std::move(checkpoint), pool, options);
  std::error_code ec;
  PanelCache cache(
      std::filesystem::is_directory(dir, ec) ? dir + "/carpool.panels" : dir + ".panels",
      ContentKey(checkpoint, dir));
  LoadOptions with_cache = options;
  with_cache.cache = &cache;
  ASSIGN_OR_RETURN(auto model, Build(config, std::move(checkpoint), pool, with_cache));
  cache.Finish();
  return model;
}

}  // namespace carpool
