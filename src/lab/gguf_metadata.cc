#include "lab/gguf_metadata.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace carpool {
namespace {

constexpr std::pair<std::string_view, std::string_view> kArchitectures[] = {
    {"glm_moe_dsa", "glm-dsa"},     {"glm4_moe", "glm4moe"},
    {"glm4_moe_lite", "deepseek2"}, {"deepseek_v2", "deepseek2"},
    {"deepseek_v3", "deepseek2"},   {"kimi_k2", "deepseek2"},
    {"deepseek_v32", "deepseek32"}, {"qwen3_moe", "qwen3moe"},
    {"qwen2_moe", "qwen2moe"},      {"olmoe", "olmoe"},
    {"mixtral", "llama"},           {"llama", "llama"},
    {"gpt_oss", "gpt-oss"},         {"qwen3", "qwen3"},
};

class Writer {
 public:
  Writer(std::string_view architecture, GgufWriter& out)
      : prefix_(std::string(architecture) + "."), out_(out) {}
  void U32(std::string_view key, size_t value) {
    out_.SetU32(prefix_ + std::string(key), static_cast<uint32_t>(value));
  }
  void F32(std::string_view key, double value) {
    out_.SetF32(prefix_ + std::string(key), static_cast<float>(value));
  }
  void Bool(std::string_view key, bool value) { out_.SetBool(prefix_ + std::string(key), value); }
  void Text(std::string_view key, std::string_view value) {
    out_.SetString(prefix_ + std::string(key), value);
  }
  void Bools(std::string_view key, const std::vector<bool>& values) {
    out_.SetBools(prefix_ + std::string(key), values);
  }

 private:
  std::string prefix_;
  GgufWriter& out_;
};

void WriteRope(const ModelConfig& c, Writer& w) {
  const RopeSpec& r = c.rope;
  w.U32("rope.dimension_count", r.dim);
  w.F32("rope.freq_base", r.theta);
  if (r.scaling == RopeScaling::kLinear || r.scaling == RopeScaling::kYarn) {
    w.Text("rope.scaling.type", r.scaling == RopeScaling::kLinear ? "linear" : "yarn");
    w.F32("rope.scaling.factor", r.factor);
  }
  if (r.scaling != RopeScaling::kYarn) return;
  w.U32("rope.scaling.original_context_length", static_cast<size_t>(r.original_context));
  w.F32("rope.scaling.yarn_beta_fast", r.beta_fast);
  w.F32("rope.scaling.yarn_beta_slow", r.beta_slow);
  const double log = std::log(r.factor), usual = 1.0 + 0.1 * log;
  if (c.attention == AttentionKind::kMla) {
    // The softmax scale holds the square of 1 + multiplier * ln(factor).
    const double qk = static_cast<double>(c.mla.nope_dim + c.mla.rope_dim);
    const double mscale = std::sqrt(static_cast<double>(c.softmax_scale) * std::sqrt(qk));
    w.F32("rope.scaling.yarn_log_multiplier", (mscale - 1.0) / log);
  } else if (std::fabs(r.attention_factor - usual) > 1e-6) {
    w.F32("rope.scaling.attn_factor", r.attention_factor / usual);
  }
}

void WriteAttention(const ModelConfig& c, Writer& w) {
  w.U32("attention.head_count", c.num_heads);
  w.F32("attention.layer_norm_rms_epsilon", c.rms_eps);
  if (c.attention == AttentionKind::kGqa) {
    w.U32("attention.head_count_kv", c.gqa.kv_heads);
    w.U32("attention.key_length", c.gqa.head_dim);
    w.U32("attention.value_length", c.gqa.head_dim);
    if (c.gqa.clip > 0.0f) w.F32("attention.clamp_kqv", c.gqa.clip);
    const auto& windows = c.gqa.window;
    if (const size_t window =
            windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end()))
      w.U32("attention.sliding_window", window);
    return;
  }
  const MlaConfig& m = c.mla;  // described in its absorbed form, with the true sizes beside it
  w.U32("attention.head_count_kv", 1);
  w.U32("attention.key_length", m.kv_lora_rank + m.rope_dim);
  w.U32("attention.value_length", m.kv_lora_rank);
  w.U32("attention.key_length_mla", m.nope_dim + m.rope_dim);
  w.U32("attention.value_length_mla", m.v_dim);
  if (m.q_lora_rank > 0) w.U32("attention.q_lora_rank", m.q_lora_rank);
  w.U32("attention.kv_lora_rank", m.kv_lora_rank);
  if (m.indexer.empty()) return;
  w.U32("attention.indexer.head_count", m.index_heads);
  w.U32("attention.indexer.key_length", m.index_dim);
  w.U32("attention.indexer.top_k", m.index_topk);
  std::vector<bool> full;
  for (const IndexerKind kind : m.indexer) full.push_back(kind == IndexerKind::kFull);
  w.Bools("attention.indexer.types", full);
}

void WriteExperts(const ModelConfig& c, Writer& w) {
  const GateSpec& g = c.gate;
  w.U32("expert_count", g.num_experts);
  w.U32("expert_used_count", g.top_k);
  w.U32("expert_feed_forward_length", c.expert_width);
  w.U32("leading_dense_block_count",
        static_cast<size_t>(std::count(c.mlp.begin(), c.mlp.end(), MlpKind::kDense)));
  if (c.shared_width > 0) {
    w.U32("expert_shared_count", c.num_shared_experts);
    w.U32("expert_shared_feed_forward_length", c.shared_width);
  }
  w.F32("expert_weights_scale", g.scale);
  w.Bool("expert_weights_norm", g.renormalize != Renormalize::kNone);
  w.U32("expert_gating_func", c.model_type == "gpt_oss"                  ? 3
                              : g.activation == GateActivation::kSigmoid ? 2
                                                                         : 1);
  if (g.num_groups > 1) {
    w.U32("expert_group_count", g.num_groups);
    w.U32("expert_group_used_count", g.groups_kept);
  }
}

}  // namespace

Result<std::string_view> GgufArchitectureOf(std::string_view model_type) {
  for (const auto& [ours, theirs] : kArchitectures) {
    if (ours == model_type) return theirs;
  }
  return MakeError(ErrorCode::kUnsupported, "model_type '{}' has no name in GGUF", model_type);
}

Status WriteModelMetadata(const ModelConfig& c, GgufWriter& out) {
  ASSIGN_OR_RETURN(const std::string_view architecture, GgufArchitectureOf(c.model_type));
  if (!std::is_sorted(c.mlp.begin(), c.mlp.end())) {
    return MakeError(ErrorCode::kUnsupported,
                     "dense layers after sparse ones: GGUF can only say how many come first");
  }
  Writer w(architecture, out);
  out.SetString("general.architecture", architecture);
  out.SetU32("general.quantization_version", 2);
  w.U32("block_count", c.num_layers);
  w.U32("context_length", c.max_position);
  w.U32("embedding_length", c.hidden);
  w.U32("feed_forward_length", c.dense_width > 0 ? c.dense_width : c.expert_width);
  w.U32("vocab_size", c.vocab_size);
  WriteAttention(c, w);
  WriteRope(c, w);
  if (c.NumMoeLayers() > 0) WriteExperts(c, w);
  return {};
}

}  // namespace carpool
