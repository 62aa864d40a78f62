#include "models/config_parts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace carpool {
namespace {

using Json = nlohmann::json;

std::string Quoted(std::string_view text) { return fmt::format("'{}'", Printable(text)); }

void RequireEven(ConfigFields& f, const char* field, size_t n) {
  f.Require(n % 2 == 0, field, "an even number (rope turns pairs)", fmt::format("{}", n));
}

}  // namespace

void ReadGqa(ConfigFields& f, ModelConfig& c) {
  c.attention = AttentionKind::kGqa;
  c.num_heads = f.Size({"num_attention_heads"}, 1, kMaxHeads);
  c.gqa.kv_heads = f.Size({"num_key_value_heads"}, 1, c.num_heads, c.num_heads);
  f.Require(c.num_heads % c.gqa.kv_heads == 0, "num_key_value_heads",
            fmt::format("a divisor of num_attention_heads {}", c.num_heads),
            fmt::format("{}", c.gqa.kv_heads));
  c.gqa.head_dim = f.Size({"head_dim"}, 2, kMaxWidth, std::max<size_t>(2, c.hidden / c.num_heads));
  c.softmax_scale = 1.0f / std::sqrt(static_cast<float>(c.gqa.head_dim));
  // Newer files keep the share inside rope_parameters.
  double part = f.Number({"partial_rotary_factor"}, 0.0, 1.0, 1.0);
  if (const Json* rope = f.Find({"rope_parameters"}); rope != nullptr && rope->is_object()) {
    ConfigFields inner = f.Inside("rope_parameters", *rope);
    part = inner.Number({"partial_rotary_factor"}, 0.0, 1.0, part);
    f.Adopt(inner);
  }
  c.rope.dim = static_cast<size_t>(static_cast<double>(c.gqa.head_dim) * part);
  RequireEven(f, "head_dim", c.rope.dim);
  c.rope_interleave = f.Flag({"rope_interleave"}, false);  // files whose q and k rows were permuted
  ReadRope(f, c);
}

void ReadWindows(ConfigFields& f, ModelConfig& c, const WindowRule& rule) {
  const size_t window = f.Size({"sliding_window"}, 1, kMaxContext, 0);
  if (window == 0) return;
  const Json* types = f.Find({"layer_types"});
  const std::string wanted =
      fmt::format("{} strings \"full_attention\" or \"sliding_attention\"", c.num_layers);
  if (types != nullptr && (!types->is_array() || types->size() < c.num_layers)) {
    f.Fail("layer_types", wanted, ShortJson(*types));
    return;
  }
  for (size_t i = 0; i < c.num_layers; ++i) {
    bool slides = i >= rule.first && (i - rule.first) % rule.every == 0;
    if (types != nullptr) {
      const Json& type = (*types)[i];
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention")
        f.Fail("layer_types", wanted, ShortJson(type), ErrorCode::kUnsupported);
    }
    c.gqa.window.push_back(slides ? window : 0);
  }
}

void ReadQwenWindows(ConfigFields& f, ModelConfig& c) {
  if (f.Flag({"use_sliding_window"}, false))
    ReadWindows(f, c, {.first = f.Size({"max_window_layers"}, 0, kMaxLayers, 0), .every = 1});
}

void ReadMla(ConfigFields& f, ModelConfig& c, bool needs_q_lora) {
  MlaConfig& m = c.mla;
  c.attention = AttentionKind::kMla;
  c.num_heads = f.Size({"num_attention_heads"}, 1, kMaxHeads);
  m.q_lora_rank =
      f.Size({"q_lora_rank"}, 1, kMaxWidth, needs_q_lora ? std::nullopt : std::optional<size_t>(0));
  m.kv_lora_rank = f.Size({"kv_lora_rank"}, 1, kMaxWidth);
  m.nope_dim = f.Size({"qk_nope_head_dim"}, 1, kMaxWidth);
  m.rope_dim = f.Size({"qk_rope_head_dim"}, 2, kMaxWidth);
  m.v_dim = f.Size({"v_head_dim"}, 1, kMaxWidth);
  m.bias = f.Flag({"attention_bias"}, false);
  RequireEven(f, "qk_rope_head_dim", m.rope_dim);
  const size_t kv_heads = f.Size({"num_key_value_heads"}, 1, kMaxHeads, c.num_heads);
  f.Require(kv_heads == c.num_heads, "num_key_value_heads",
            fmt::format("{}, as many as num_attention_heads (MLA)", c.num_heads),
            fmt::format("{}", kv_heads));
  const size_t qk = m.nope_dim + m.rope_dim;
  const size_t said = f.Size({"qk_head_dim"}, 1, 2 * kMaxWidth, qk);
  f.Require(said == qk, "qk_head_dim", fmt::format("{}, the sum of the nope and rope parts", qk),
            fmt::format("{}", said));
  c.rope.dim = m.rope_dim;
  c.rope_interleave = f.Flag({"rope_interleave"}, true);
  ReadRope(f, c);
  c.softmax_scale = 1.0f / std::sqrt(static_cast<float>(qk));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = f.Find({key});
    if (rope == nullptr || !rope->is_object() || c.rope.scaling == RopeScaling::kNone) continue;
    ConfigFields inner = f.Inside(key, *rope);
    if (inner.Find({"mscale_all_dim"}) == nullptr) continue;
    const double m_all = inner.Number({"mscale_all_dim"}, 0.0, 100.0);
    f.Adopt(inner);
    const double mscale = m_all == 0.0 ? 1.0 : YarnScale(c.rope.factor, m_all);
    c.softmax_scale *= static_cast<float>(mscale * mscale);
    break;
  }
}

void ReadIndexer(ConfigFields& f, ModelConfig& c, bool rope_interleave) {
  MlaConfig& m = c.mla;
  m.index_heads = f.Size({"index_n_heads"}, 1, kMaxHeads, 32);
  m.index_dim = f.Size({"index_head_dim"}, 1, kMaxWidth, 128);
  m.index_topk = f.Size({"index_topk"}, 1, kMaxContext, 2048);
  m.index_rope_interleave = f.Flag({"indexer_rope_interleave"}, rope_interleave);
  f.Require(m.rope_dim <= m.index_dim, "index_head_dim",
            fmt::format("at least qk_rope_head_dim {}", m.rope_dim),
            fmt::format("{}", m.index_dim));
  if (!f.ok()) return;
  // Which layers run their own indexer: a list, a pattern, or a frequency with an offset.
  const size_t most = c.num_layers + c.num_mtp_layers;
  if (const Json* list = f.Find({"indexer_types"})) {
    const std::string wanted = fmt::format("{} strings \"full\" or \"shared\"", c.num_layers);
    if (!list->is_array() || list->size() < c.num_layers || list->size() > most) {
      f.Fail("indexer_types", wanted, ShortJson(*list));
      return;
    }
    for (size_t i = 0; i < c.num_layers; ++i) {
      const Json& kind = (*list)[i];
      if (kind != "full" && kind != "shared") f.Fail("indexer_types", wanted, ShortJson(kind));
      m.indexer.push_back(kind == "full" ? IndexerKind::kFull : IndexerKind::kShared);
    }
  } else if (const std::string pattern = f.Text({"index_topk_pattern"}, ""); !pattern.empty()) {
    const bool letters = pattern.find_first_not_of("FS") == pattern.npos;
    if (!letters || pattern.size() < c.num_layers || pattern.size() > most) {
      f.Fail("index_topk_pattern", fmt::format("{} letters F or S", c.num_layers), Quoted(pattern));
      return;
    }
    for (size_t i = 0; i < c.num_layers; ++i) {
      m.indexer.push_back(pattern[i] == 'F' ? IndexerKind::kFull : IndexerKind::kShared);
    }
  } else {
    const size_t freq = std::max<size_t>(1, f.Size({"index_topk_freq"}, 0, kMaxLayers, 1));
    const size_t offset = f.Size({"index_skip_topk_offset"}, 0, kMaxLayers, 2);
    for (size_t i = 0; i < c.num_layers; ++i) {
      const size_t place = i + 1 > offset ? i + 1 - offset : 0;
      m.indexer.push_back(place % freq == 0 ? IndexerKind::kFull : IndexerKind::kShared);
    }
  }
  f.Require(m.indexer.empty() || m.indexer[0] == IndexerKind::kFull, "indexer_types",
            "a full indexer in layer 0 (a shared one uses the last full one before it)",
            "a shared one");
}

void ReadRope(ConfigFields& f, ModelConfig& c) {
  // Newer files keep all of it in rope_parameters, older ones theta at the top and the rest in
  // rope_scaling.
  RopeSpec& r = c.rope;
  std::optional<double> theta;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* scaling = f.Find({key});
    if (scaling == nullptr) continue;
    if (!scaling->is_object()) {
      f.Fail(key, "an object or null", ShortJson(*scaling));
      return;
    }
    ConfigFields in = f.Inside(key, *scaling);
    const std::string type = in.Text({"rope_type", "type"}, "default");
    if (type == "linear") {
      r.scaling = RopeScaling::kLinear;
    } else if (type == "yarn") {
      r.scaling = RopeScaling::kYarn;
    } else if (type == "llama3") {
      r.scaling = RopeScaling::kLlama3;
    } else if (type != "default") {
      in.Fail("rope_type", "default, linear, yarn or llama3", Quoted(type),
              ErrorCode::kUnsupported);
    }
    if (!theta && in.Find({"rope_theta"}) != nullptr) theta = in.Number({"rope_theta"}, 1.0, 1e15);
    if (type != "default") r.factor = in.Number({"factor"}, 1.0, 1e6);
    if (type == "yarn" || type == "llama3") {
      r.original_context = static_cast<double>(in.Size(
          {"original_max_position_embeddings"}, 1, kMaxContext,
          f.Size({"original_max_position_embeddings", "max_position_embeddings"}, 1, kMaxContext)));
    }
    if (type == "yarn") {
      r.beta_fast = in.Number({"beta_fast"}, 1e-3, 1e6, 32.0);
      r.beta_slow = in.Number({"beta_slow"}, 1e-3, 1e6, 1.0);
      r.truncate = in.Flag({"truncate"}, true);
      const double mscale = in.Number({"mscale"}, 0.0, 100.0, 0.0);
      const double mscale_all = in.Number({"mscale_all_dim"}, 0.0, 100.0, 0.0);
      const double usual = mscale != 0.0 && mscale_all != 0.0
                               ? YarnScale(r.factor, mscale) / YarnScale(r.factor, mscale_all)
                               : YarnScale(r.factor, 1.0);
      r.attention_factor = in.Number({"attention_factor"}, 0.0, 100.0, usual);
    }
    if (type == "llama3") {
      r.low_freq_factor = in.Number({"low_freq_factor"}, 1e-6, 1e6, 1.0);
      r.high_freq_factor = in.Number({"high_freq_factor"}, 1e-6, 1e6, 4.0);
      in.Require(r.low_freq_factor < r.high_freq_factor, "high_freq_factor",
                 fmt::format("more than low_freq_factor {}", r.low_freq_factor),
                 fmt::format("{}", r.high_freq_factor));
    }
    if (!in.ok()) {
      f.Adopt(in);
      return;
    }
  }
  r.theta = theta ? *theta : f.Number({"rope_theta"}, 1.0, 1e15, 10000.0);
}

void ReadExperts(ConfigFields& f, ModelConfig& c) {
  c.gate.num_experts =
      f.Size({"n_routed_experts", "num_local_experts", "num_experts"}, 1, kMaxRoutedExperts);
  c.gate.top_k = f.Size({"num_experts_per_tok", "experts_per_token"}, 1, c.gate.num_experts);
  c.gate.group_score = GroupScore::kNone;
}

void ReadGroups(ConfigFields& f, ModelConfig& c, GroupScore score) {
  GateSpec& gate = c.gate;
  // 0 and absent mean one group.
  gate.num_groups = std::max<size_t>(1, f.Size({"n_group"}, 0, gate.num_experts, 1));
  gate.groups_kept =
      std::max<size_t>(1, f.Size({"topk_group"}, 0, gate.num_groups, gate.num_groups));
  f.Require(gate.num_experts % gate.num_groups == 0, "n_group",
            fmt::format("a divisor of the {} experts", gate.num_experts),
            fmt::format("{}", gate.num_groups));
  const size_t group_size = gate.num_experts / gate.num_groups;
  f.Require(gate.num_groups == 1 || group_size >= 2 || score == GroupScore::kMax, "n_group",
            "groups of at least two experts (a group's score is the sum of its best two)",
            fmt::format("{} groups of one", gate.num_groups));
  f.Require(gate.top_k <= gate.groups_kept * group_size, "num_experts_per_tok",
            fmt::format("at most {} (topk_group {} times {} experts per group)",
                        gate.groups_kept * group_size, gate.groups_kept, group_size),
            fmt::format("{}", gate.top_k));
  gate.group_score = gate.num_groups > 1 ? score : GroupScore::kNone;
}

void ReadSigmoidGate(ConfigFields& f, ModelConfig& c) {
  ReadExperts(f, c);
  ReadGroups(f, c, GroupScore::kTop2Sum);
  f.RequireText({"scoring_func"}, "sigmoid");
  f.RequireText({"topk_method"}, "noaux_tc");
  c.gate.activation = GateActivation::kSigmoid;
  c.gate.has_bias = true;
  c.gate.renormalize =
      f.Flag({"norm_topk_prob"}, true) ? Renormalize::kDivideBySum : Renormalize::kNone;
  c.gate.scale = static_cast<float>(f.Number({"routed_scaling_factor"}, 1e-6, 1e6, 1.0));
}

void ReadSoftmaxGate(ConfigFields& f, ModelConfig& c, bool fallback) {
  ReadExperts(f, c);
  c.gate.activation = GateActivation::kSoftmax;
  c.gate.renormalize =
      f.Flag({"norm_topk_prob"}, fallback) ? Renormalize::kDivideBySum : Renormalize::kNone;
}

void ReadSharedExperts(ConfigFields& f, ModelConfig& c) {
  c.num_shared_experts = f.Size({"n_shared_experts"}, 0, 64, 1);
  c.shared_width = c.num_shared_experts * c.expert_width;
}

void ReadFirstDense(ConfigFields& f, ModelConfig& c) {
  if (!f.ok()) return;
  const Json* list = f.Find({"mlp_layer_types"});
  if (list == nullptr) {
    const size_t dense = f.Size({"first_k_dense_replace"}, 0, c.num_layers, 0);
    c.mlp.assign(c.num_layers, MlpKind::kSparse);
    std::fill_n(c.mlp.begin(), dense, MlpKind::kDense);
    return;
  }
  const std::string wanted = fmt::format("{} strings \"dense\" or \"sparse\"", c.num_layers);
  if (!list->is_array() || list->size() < c.num_layers ||
      list->size() > c.num_layers + c.num_mtp_layers) {
    f.Fail("mlp_layer_types", wanted, ShortJson(*list));
    return;
  }
  for (size_t i = 0; i < c.num_layers; ++i) {
    const Json& kind = (*list)[i];
    if (kind != "dense" && kind != "sparse") f.Fail("mlp_layer_types", wanted, ShortJson(kind));
    c.mlp.push_back(kind == "dense" ? MlpKind::kDense : MlpKind::kSparse);
  }
}

void ReadSparseStep(ConfigFields& f, ModelConfig& c) {
  const size_t step = f.Size({"decoder_sparse_step"}, 1, kMaxLayers, 1);
  for (size_t i = 0; i < c.num_layers; ++i)
    c.mlp.push_back((i + 1) % step == 0 ? MlpKind::kSparse : MlpKind::kDense);
  const Json* list = f.Find({"mlp_only_layers"});
  if (list == nullptr) return;
  const std::string wanted = fmt::format("a list of layer numbers below {}", c.num_layers);
  if (!list->is_array() || list->size() > kMaxLayers) {
    f.Fail("mlp_only_layers", wanted, ShortJson(*list));
    return;
  }
  for (const Json& layer : *list) {
    if (layer.is_number_unsigned() && layer.get<uint64_t>() < c.num_layers) {
      c.mlp[layer.get<size_t>()] = MlpKind::kDense;
    } else {
      f.Fail("mlp_only_layers", wanted, ShortJson(layer));
    }
  }
}

void ReadLatentSigmoidMoe(ConfigFields& f, ModelConfig& c, bool needs_q_lora) {
  c.dense_width = f.Size({"intermediate_size"}, 1, kMaxWidth);
  c.expert_width = f.Size({"moe_intermediate_size"}, 1, kMaxWidth);
  ReadSharedExperts(f, c);
  ReadSigmoidGate(f, c);
  ReadMla(f, c, needs_q_lora);
  ReadFirstDense(f, c);
}

}  // namespace carpool
