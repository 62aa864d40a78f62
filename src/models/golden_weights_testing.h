// Test support: the seeded weight generator of the golden logits, written out as a real checkpoint
// directory.
//
// Every tensor is a function of its name alone (FNV-1a of the name seeds splitmix64), so goldens
// computed elsewhere need no weight files. Tests load the result through the ordinary loader.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace carpool::testing {

inline std::vector<float> GoldenTensor(const std::string& name, const std::vector<size_t>& shape,
                                       const std::string& salt = "") {
  uint64_t seed = 0xcbf29ce484222325ull;
  for (unsigned char c : name + salt) seed = (seed ^ c) * 0x100000001b3ull;
  size_t n = 1;
  for (size_t d : shape) n *= d;
  const auto ends = [&](const char* suffix) {
    const size_t len = std::strlen(suffix);
    return name.size() >= len && name.compare(name.size() - len, len, suffix) == 0;
  };
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    const double u = 2.0 * (static_cast<double>(z >> 11) * 0x1.0p-53) - 1.0;
    double value = u * std::sqrt(3.0 / static_cast<double>(shape.back()));
    if (ends("norm.weight")) {
      value = 1.0 + 0.1 * u;
    } else if (ends("k_norm.bias") || ends("_proj.bias")) {
      value = 0.1 * u;
    } else if (ends("e_score_correction_bias")) {
      value = 0.2 * u;
    } else if (ends("mlp.gate.weight") || ends("block_sparse_moe.gate.weight") ||
               name == "model.embed_tokens.weight") {
      value = u;
    }
    values[i] = static_cast<float>(value);
  }
  return values;
}

/// Collects tensors and writes model.safetensors + config.json (+ extra files) into a fresh
/// temporary directory.
class GoldenCheckpoint {
 public:
  explicit GoldenCheckpoint(const std::string& label)
      : dir_(std::filesystem::temp_directory_path() /
             ("carpool_" + label + "_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  ~GoldenCheckpoint() { std::filesystem::remove_all(dir_); }
  std::string dir() const { return dir_.string(); }

  void Add(const std::string& name, const std::vector<size_t>& shape,
           const std::string& salt = "") {
    const auto values = GoldenTensor(name, shape, salt);
    AddRaw(name, "F32", shape, values.data(), values.size() * sizeof(float));
  }
  void AddRaw(const std::string& name, const char* dtype, const std::vector<size_t>& shape,
              const void* data, size_t bytes) {
    const size_t begin = data_.size();
    data_.append(static_cast<const char*>(data), bytes);
    std::string dims;
    for (size_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    header_ += (header_.empty() ? "{" : ",") +
               ("\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + dims +
                "],\"data_offsets\":[" + std::to_string(begin) + "," +
                std::to_string(data_.size()) + "]}");
  }
  void Write(const std::string& config_json) {
    const std::string header = header_ + "}";
    const uint64_t n = header.size();
    std::ofstream f(dir_ / "model.safetensors", std::ios::binary);
    f.write(reinterpret_cast<const char*>(&n), sizeof(n));
    f << header << data_;
    WriteText("config.json", config_json);
  }
  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
  }

 private:
  std::filesystem::path dir_;
  std::string header_;
  std::string data_;
};

/// The tiny glm_moe_dsa configuration of the goldens; `extra` is JSON members that override or add,
/// e.g. R"("index_topk": 64)".
struct TinyGlm {
  size_t index_topk = 8;
  size_t n_group = 1, topk_group = 1;
  int index_topk_freq = 0, index_skip_topk_offset = 0;  // 0 = absent
  bool index_rope_interleave = true;
  bool nvfp4_experts = false;

  std::string ConfigJson() const {
    std::string json =
        R"({"model_type":"glm_moe_dsa","vocab_size":320,"hidden_size":64,"intermediate_size":128,
      "moe_intermediate_size":32,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":4,"q_lora_rank":32,
      "kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":24,"n_routed_experts":16,
      "n_shared_experts":1,"num_experts_per_tok":4,"routed_scaling_factor":2.5,"norm_topk_prob":true,
      "first_k_dense_replace":1,"index_n_heads":8,"index_head_dim":16,"rms_norm_eps":1e-5,"scoring_func":"sigmoid",
      "topk_method":"noaux_tc","rope_interleave":true,"hidden_act":"silu",
      "rope_parameters":{"rope_type":"default","rope_theta":10000.0},"max_position_embeddings":512,
      "tie_word_embeddings":false,"attention_bias":false,"eos_token_id":[319],)";
    json += "\"index_topk\":" + std::to_string(index_topk) +
            ",\"n_group\":" + std::to_string(n_group) +
            ",\"topk_group\":" + std::to_string(topk_group);
    if (index_topk_freq != 0) json += ",\"index_topk_freq\":" + std::to_string(index_topk_freq);
    if (index_skip_topk_offset != 0)
      json += ",\"index_skip_topk_offset\":" + std::to_string(index_skip_topk_offset);
    json +=
        std::string(",\"indexer_rope_interleave\":") + (index_rope_interleave ? "true" : "false");
    return json + "}";
  }

  /// `encode` stores one routed expert's tensor when nvfp4_experts is set: (checkpoint, module
  /// name, rows, cols).
  void Fill(GoldenCheckpoint& c,
            const std::function<void(GoldenCheckpoint&, const std::string&, size_t, size_t)>&
                encode = {}) const {
    c.Add("model.embed_tokens.weight", {320, 64});
    c.Add("lm_head.weight", {320, 64});
    c.Add("model.norm.weight", {64});
    for (int layer = 0; layer < 4; ++layer) {
      const std::string p = "model.layers." + std::to_string(layer) + ".";
      c.Add(p + "input_layernorm.weight", {64});
      c.Add(p + "post_attention_layernorm.weight", {64});
      c.Add(p + "self_attn.q_a_proj.weight", {32, 64});
      c.Add(p + "self_attn.q_a_layernorm.weight", {32});
      c.Add(p + "self_attn.q_b_proj.weight", {4 * 24, 32});
      c.Add(p + "self_attn.kv_a_proj_with_mqa.weight", {40, 64});
      c.Add(p + "self_attn.kv_a_layernorm.weight", {32});
      c.Add(p + "self_attn.kv_b_proj.weight", {4 * 40, 32});
      c.Add(p + "self_attn.o_proj.weight", {64, 4 * 24});
      c.Add(p + "self_attn.indexer.wq_b.weight", {8 * 16, 32});
      c.Add(p + "self_attn.indexer.wk.weight", {16, 64});
      c.Add(p + "self_attn.indexer.k_norm.weight", {16});
      c.Add(p + "self_attn.indexer.k_norm.bias", {16});
      c.Add(p + "self_attn.indexer.weights_proj.weight", {8, 64});
      const auto mlp = [&](const std::string& m, size_t width, bool routed) {
        const std::pair<const char*, std::pair<size_t, size_t>> parts[] = {
            {"gate_proj", {width, 64}}, {"up_proj", {width, 64}}, {"down_proj", {64, width}}};
        for (const auto& [part, shape] : parts) {
          if (routed && nvfp4_experts) {
            encode(c, m + part, shape.first, shape.second);
          } else {
            c.Add(m + part + ".weight", {shape.first, shape.second});
          }
        }
      };
      if (layer == 0) {
        mlp(p + "mlp.", 128, false);
        continue;
      }
      c.Add(p + "mlp.gate.weight", {16, 64});
      c.Add(p + "mlp.gate.e_score_correction_bias", {16});
      for (int e = 0; e < 16; ++e) mlp(p + "mlp.experts." + std::to_string(e) + ".", 32, true);
      mlp(p + "mlp.shared_experts.", 32, false);
    }
  }
};

/// The goldens' token sequence: id_i = (7 i^2 + 3 i + 1) mod vocab.
inline std::vector<int32_t> GoldenTokens(size_t n, size_t vocab = 320) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int32_t>((7 * i * i + 3 * i + 1) % vocab));
  return ids;
}

}  // namespace carpool::testing
