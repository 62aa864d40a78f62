#include "models/bind_parts.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "models/all_models.h"

namespace carpool {
namespace {

/// A config that promises far more than the checkpoint holds must not make us list millions of
/// names.
constexpr size_t kEnoughProblems = 10'000;

LayerWeights BindLayer(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t i) {
  LayerWeights layer;
  layer.input_norm = b.Vector(at + ".input_layernorm.weight", c.hidden);
  layer.post_attention_norm = b.Vector(at + ".post_attention_layernorm.weight", c.hidden);
  FindArchitecture(c.model_type)->bind(c, b, at, i, layer);
  return layer;
}

/// Layer `i` of a checkpoint whose main model ends before it; nullopt and a note when it is not
/// there as a whole.
std::optional<MtpWeights> BindMtp(ModelConfig c, TensorBinder& b, size_t i,
                                  const ModelWeights& model) {
  const std::string at = "model.layers." + std::to_string(i);
  for (const char* part : {"eh_proj", "enorm", "hnorm", "shared_head.norm", "input_layernorm"}) {
    if (b.HasPrefix(at + "." + part + ".")) continue;
    b.NoteMissingOptional(fmt::format(
        "MTP layer {}{}", i, b.HasPrefix(at + ".") ? fmt::format(" (it has no {})", part) : ""));
    b.IgnorePrefix(at + ".");
    return std::nullopt;
  }
  c.mlp.resize(i + 1, MlpKind::kSparse);
  if (!c.mla.indexer.empty()) c.mla.indexer.resize(i + 1, IndexerKind::kFull);
  MtpWeights w;
  w.embed_norm = b.Vector(at + ".enorm.weight", c.hidden);
  w.hidden_norm = b.Vector(at + ".hnorm.weight", c.hidden);
  w.eh_proj = b.Linear(at + ".eh_proj", c.hidden, 2 * c.hidden);
  w.layer = BindLayer(c, b, at, i);
  w.norm = b.Vector(at + ".shared_head.norm.weight", c.hidden);
  const auto own = [&](const std::string& module, const StoredMatrix& fallback) {
    return b.HasPrefix(module + ".") ? b.Linear(module, c.vocab_size, c.hidden) : fallback;
  };
  w.embed_tokens = own(at + ".embed_tokens", model.embed_tokens);
  w.lm_head = own(at + ".shared_head.head", model.lm_head);
  return w;
}

}  // namespace

GqaWeights BindGqa(const ModelConfig& c, TensorBinder& b, const std::string& at) {
  const size_t q = c.num_heads * c.gqa.head_dim, kv = c.gqa.kv_heads * c.gqa.head_dim;
  GqaWeights w;
  w.q = b.Linear(at + ".q_proj", q, c.hidden);
  w.k = b.Linear(at + ".k_proj", kv, c.hidden);
  w.v = b.Linear(at + ".v_proj", kv, c.hidden);
  w.o = b.Linear(at + ".o_proj", c.hidden, q);
  if (c.gqa.qkv_bias) {
    w.q_bias = b.Vector(at + ".q_proj.bias", q);
    w.k_bias = b.Vector(at + ".k_proj.bias", kv);
    w.v_bias = b.Vector(at + ".v_proj.bias", kv);
  }
  if (c.gqa.o_bias) w.o_bias = b.Vector(at + ".o_proj.bias", c.hidden);
  if (c.gqa.qk_norm != QkNorm::kNone) {
    const bool full = c.gqa.qk_norm == QkNorm::kFull;
    w.q_norm = b.Vector(at + ".q_norm.weight", full ? q : c.gqa.head_dim);
    w.k_norm = b.Vector(at + ".k_norm.weight", full ? kv : c.gqa.head_dim);
  }
  if (c.gqa.sinks) w.sinks = b.Vector(at + ".sinks", c.num_heads);
  return w;
}

MlaWeights BindMla(const ModelConfig& c, TensorBinder& b, const std::string& at) {
  const MlaConfig& m = c.mla;
  const size_t q_rows = c.num_heads * (m.nope_dim + m.rope_dim);
  MlaWeights w;
  if (m.q_lora_rank > 0) {
    w.q_a = b.Linear(at + ".q_a_proj", m.q_lora_rank, c.hidden);
    w.q_a_norm = b.Vector(at + ".q_a_layernorm.weight", m.q_lora_rank);
    w.q_b = b.Linear(at + ".q_b_proj", q_rows, m.q_lora_rank);
  } else {
    w.q_b = b.Linear(at + ".q_proj", q_rows, c.hidden);
  }
  w.kv_a = b.Linear(at + ".kv_a_proj_with_mqa", m.kv_lora_rank + m.rope_dim, c.hidden);
  w.kv_a_norm = b.Vector(at + ".kv_a_layernorm.weight", m.kv_lora_rank);
  w.kv_b = b.Linear(at + ".kv_b_proj", c.num_heads * (m.nope_dim + m.v_dim), m.kv_lora_rank);
  w.o = b.Linear(at + ".o_proj", c.hidden, c.num_heads * m.v_dim);
  if (m.bias) {
    if (m.q_lora_rank > 0) w.q_a_bias = b.Vector(at + ".q_a_proj.bias", m.q_lora_rank);
    w.kv_a_bias = b.Vector(at + ".kv_a_proj_with_mqa.bias", m.kv_lora_rank + m.rope_dim);
    w.o_bias = b.Vector(at + ".o_proj.bias", c.hidden);
  }
  return w;
}

void BindIndexer(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                 LayerWeights& out) {
  const MlaConfig& m = c.mla;
  if (m.Indexer(layer) != IndexerKind::kFull) {
    b.IgnorePrefix(at + ".");  // some files carry the tensors of layers that share another's choice
    return;
  }
  IndexerWeights w;
  w.wq_b = b.Linear(at + ".wq_b", m.index_heads * m.index_dim, m.q_lora_rank);
  w.wk = b.Linear(at + ".wk", m.index_dim, c.hidden);
  w.k_norm = b.Vector(at + ".k_norm.weight", m.index_dim);
  w.k_norm_bias = b.Vector(at + ".k_norm.bias", m.index_dim);
  w.weights_proj = b.Linear(at + ".weights_proj", m.index_heads, c.hidden);
  out.indexer = std::move(w);
}

GatedMlpWeights BindMlp(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t width,
                        const MlpNames& names) {
  const std::string gate = at + "." + names.gate, up = at + "." + names.up,
                    down = at + "." + names.down;
  GatedMlpWeights w;
  w.gate = b.Linear(gate, width, c.hidden);
  w.up = b.Linear(up, width, c.hidden);
  w.down = b.Linear(down, c.hidden, width);
  if (c.mlp_bias || c.expert_bias) {
    w.gate_bias = b.Vector(gate + ".bias", width);
    w.up_bias = b.Vector(up + ".bias", width);
    w.down_bias = b.Vector(down + ".bias", c.hidden);
  }
  return w;
}

std::vector<GatedMlpWeights> BindExperts(const ModelConfig& c, TensorBinder& b,
                                         const std::string& at, const MlpNames& names) {
  const size_t n = c.gate.num_experts, width = c.expert_width;
  const std::string fused = at + ".gate_up_proj";
  const bool is_fused = b.Has(fused);
  std::vector<GatedMlpWeights> experts;
  for (size_t e = 0; e < n && b.num_problems() < kEnoughProblems; ++e) {
    if (!is_fused) {
      experts.push_back(BindMlp(c, b, at + "." + std::to_string(e), width, names));
      continue;
    }
    GatedMlpWeights w;
    w.gate = b.Slice(fused, {e, n, 2 * width, 0, width, c.hidden});
    w.up = b.Slice(fused, {e, n, 2 * width, width, width, c.hidden});
    w.down = b.Slice(at + ".down_proj", {e, n, c.hidden, 0, c.hidden, width});
    experts.push_back(std::move(w));
  }
  return experts;
}

void BindMlpOrMoe(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                  LayerWeights& out, const MoeNames& names) {
  if (c.mlp[layer] == MlpKind::kDense) {
    out.dense = BindMlp(c, b, at, c.dense_width);
    return;
  }
  const size_t n = c.gate.num_experts;
  const std::string router = at + "." + names.router;
  MoeWeights w;
  w.router = b.Linear(router, n, c.hidden);
  if (c.gate.has_bias) w.correction_bias = b.Vector(router + ".e_score_correction_bias", n);
  w.experts = BindExperts(c, b, at + "." + names.experts, names.mlp);
  if (c.shared_width > 0)
    w.shared = BindMlp(c, b, at + "." + names.shared, c.shared_width, names.mlp);
  out.moe = std::move(w);
}

void BindUsualLayer(const ModelConfig& c, TensorBinder& b, const std::string& at, size_t layer,
                    LayerWeights& out) {
  if (c.attention == AttentionKind::kMla) {
    out.mla = BindMla(c, b, at + ".self_attn");
    BindIndexer(c, b, at + ".self_attn.indexer", layer, out);
  } else {
    out.gqa = BindGqa(c, b, at + ".self_attn");
  }
  BindMlpOrMoe(c, b, at + ".mlp", layer, out);
}

Result<ModelWeights> BindModel(const ModelConfig& c, TensorBinder& b) {
  CARPOOL_CHECK(FindArchitecture(c.model_type) != nullptr);
  ModelWeights w;
  w.embed_tokens = b.Linear("model.embed_tokens", c.vocab_size, c.hidden);
  if (c.tie_embeddings) {
    w.lm_head = w.embed_tokens;
    b.IgnorePrefix("lm_head.");  // some files carry a copy
  } else {
    w.lm_head = b.Linear("lm_head", c.vocab_size, c.hidden);
  }
  w.norm = b.Vector("model.norm.weight", c.hidden);
  for (size_t i = 0; i < c.num_layers && b.num_problems() < kEnoughProblems; ++i)
    w.layers.push_back(BindLayer(c, b, "model.layers." + std::to_string(i), i));
  const size_t parameters = b.report().parameters;
  for (size_t i = 0; i < c.num_mtp_layers; ++i)
    if (auto mtp = BindMtp(c, b, c.num_layers + i, w)) w.mtp.push_back(*std::move(mtp));
  w.mtp_parameters = b.report().parameters - parameters;
  RETURN_IF_ERROR(b.Finish());
  return w;
}

}  // namespace carpool
