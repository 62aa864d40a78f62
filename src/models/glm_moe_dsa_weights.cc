#include "models/glm_moe_dsa_weights.h"

#include <string>
#include <utility>

namespace carpool {
namespace {

/// A config that promises far more than the checkpoint holds must not make us list millions of
/// names.
constexpr size_t kEnoughProblems = 10'000;

GatedMlpWeights BindMlp(TensorBinder& b, const std::string& at, size_t hidden, size_t width) {
  GatedMlpWeights w;
  w.gate = b.Linear(at + ".gate_proj", width, hidden);
  w.up = b.Linear(at + ".up_proj", width, hidden);
  w.down = b.Linear(at + ".down_proj", hidden, width);
  return w;
}

MlaWeights BindAttention(const ModelConfig& c, TensorBinder& b, const std::string& at) {
  const size_t q_rows = c.num_heads * (c.qk_nope_dim + c.qk_rope_dim);
  MlaWeights w;
  if (c.q_lora_rank > 0) {
    w.q_a = b.Linear(at + ".q_a_proj", c.q_lora_rank, c.hidden);
    w.q_a_norm = b.Vector(at + ".q_a_layernorm.weight", c.q_lora_rank);
    w.q_b = b.Linear(at + ".q_b_proj", q_rows, c.q_lora_rank);
  } else {
    w.q_b = b.Linear(at + ".q_proj", q_rows, c.hidden);
  }
  w.kv_a = b.Linear(at + ".kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_dim, c.hidden);
  w.kv_a_norm = b.Vector(at + ".kv_a_layernorm.weight", c.kv_lora_rank);
  w.kv_b = b.Linear(at + ".kv_b_proj", c.num_heads * (c.qk_nope_dim + c.v_dim), c.kv_lora_rank);
  w.o = b.Linear(at + ".o_proj", c.hidden, c.num_heads * c.v_dim);
  if (c.attention_bias) {
    if (c.q_lora_rank > 0) w.q_a_bias = b.Vector(at + ".q_a_proj.bias", c.q_lora_rank);
    w.kv_a_bias = b.Vector(at + ".kv_a_proj_with_mqa.bias", c.kv_lora_rank + c.qk_rope_dim);
    w.o_bias = b.Vector(at + ".o_proj.bias", c.hidden);
  }
  return w;
}

IndexerWeights BindIndexer(const ModelConfig& c, TensorBinder& b, const std::string& at) {
  IndexerWeights w;
  w.wq_b = b.Linear(at + ".wq_b", c.index_heads * c.index_dim, c.q_lora_rank);
  w.wk = b.Linear(at + ".wk", c.index_dim, c.hidden);
  w.k_norm = b.Vector(at + ".k_norm.weight", c.index_dim);
  w.k_norm_bias = b.Vector(at + ".k_norm.bias", c.index_dim);
  w.weights_proj = b.Linear(at + ".weights_proj", c.index_heads, c.hidden);
  return w;
}

/// One tensor per expert and projection, or the fused form [experts, 2 * width, hidden] with the
/// gate's rows first.
std::vector<GatedMlpWeights> BindExperts(const ModelConfig& c, TensorBinder& b,
                                         const std::string& at) {
  const size_t n = c.gate.num_experts;
  const size_t width = c.expert_width;
  const std::string fused = at + ".gate_up_proj";
  const bool is_fused = b.Has(fused);
  std::vector<GatedMlpWeights> experts;
  for (size_t e = 0; e < n && b.num_problems() < kEnoughProblems; ++e) {
    if (!is_fused) {
      experts.push_back(BindMlp(b, at + "." + std::to_string(e), c.hidden, width));
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

MoeWeights BindMoe(const ModelConfig& c, TensorBinder& b, const std::string& at) {
  MoeWeights w;
  w.router = b.Linear(at + ".gate", c.gate.num_experts, c.hidden);
  if (c.gate.has_bias)
    w.correction_bias = b.Vector(at + ".gate.e_score_correction_bias", c.gate.num_experts);
  w.experts = BindExperts(c, b, at + ".experts");
  if (c.num_shared_experts > 0) {
    w.shared = BindMlp(b, at + ".shared_experts", c.hidden, c.expert_width * c.num_shared_experts);
  }
  return w;
}

GlmMoeDsaLayerWeights BindLayer(const ModelConfig& c, TensorBinder& b, size_t layer) {
  const std::string at = "model.layers." + std::to_string(layer);
  GlmMoeDsaLayerWeights w;
  w.input_norm = b.Vector(at + ".input_layernorm.weight", c.hidden);
  w.attention = BindAttention(c, b, at + ".self_attn");
  if (c.indexer[layer] == IndexerKind::kFull) {
    w.indexer = BindIndexer(c, b, at + ".self_attn.indexer");
  } else {
    b.IgnorePrefix(at + ".self_attn.indexer.");  // some files carry the tensors of layers that
                                                 // share another's choice
  }
  w.post_attention_norm = b.Vector(at + ".post_attention_layernorm.weight", c.hidden);
  if (c.mlp[layer] == MlpKind::kDense) {
    w.dense = BindMlp(b, at + ".mlp", c.hidden, c.dense_width);
  } else {
    w.moe = BindMoe(c, b, at + ".mlp");
  }
  return w;
}

}  // namespace

Result<GlmMoeDsaWeights> BindGlmMoeDsa(const ModelConfig& c, TensorBinder& b) {
  GlmMoeDsaWeights w;
  w.embed_tokens = b.Linear("model.embed_tokens", c.vocab_size, c.hidden);
  w.lm_head = c.tie_embeddings ? w.embed_tokens : b.Linear("lm_head", c.vocab_size, c.hidden);
  w.norm = b.Vector("model.norm.weight", c.hidden);
  for (size_t i = 0; i < c.num_layers && b.num_problems() < kEnoughProblems; ++i)
    w.layers.push_back(BindLayer(c, b, i));
  for (size_t i = 0; i < c.num_mtp_layers; ++i) {
    const std::string at = "model.layers." + std::to_string(c.num_layers + i) + ".";
    if (b.HasPrefix(at)) {
      b.IgnorePrefix(at);  // drafts are not made yet
    } else {
      b.NoteMissingOptional("MTP layer " + std::to_string(c.num_layers + i));
    }
  }
  RETURN_IF_ERROR(b.Finish());
  return w;
}

}  // namespace carpool
