// A GGUF file with the tiny GLM-5-shaped model's weights, laid out as llama.cpp's converter does,
// against the same goldens as the safetensors form.
#include <gtest/gtest.h>

#include <cmath>

#include "models/golden_weights_testing.h"
#include "models/model_runner_testing.h"
#include "weights/gguf_writer.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using testing::GoldenTensor;
using testing::GoldenTokens;
using testing::TempDir;

constexpr size_t kTokens = 24, kVocab = 320, kHidden = 64, kExperts = 16;

/// Tensors by their GGUF names, with values from the golden generator under Hugging Face names.
class GoldenGguf {
 public:
  GgufWriter writer;

  void Add(const std::string& gguf, const std::string& hf, std::vector<size_t> shape) {
    AddValues(gguf, shape, GoldenTensor(hf, shape));
  }
  /// One tensor of all experts; `hf` has {} for the expert.
  void AddExperts(const std::string& gguf, const std::string& hf, size_t rows, size_t cols) {
    std::vector<float> all;
    for (size_t e = 0; e < kExperts; ++e) {
      const auto one = GoldenTensor(fmt::format(fmt::runtime(hf), e), {rows, cols});
      all.insert(all.end(), one.begin(), one.end());
    }
    AddValues(gguf, {kExperts, rows, cols}, all);
  }
  void AddValues(const std::string& gguf, const std::vector<size_t>& shape,
                 const std::vector<float>& values) {
    writer.AddTensor(gguf, *FindGgmlType(0), {shape.rbegin(), shape.rend()});
    values_.push_back(values);
  }
  std::string Write(const TempDir& dir) const {
    const std::string path = dir.path() + "/tiny.gguf";
    EXPECT_TRUE(writer.Write(path, [&](const ByteSink& sink) -> Status {
      for (const auto& v : values_) RETURN_IF_ERROR(sink(std::as_bytes(std::span(v))));
      return {};
    }));
    return path;
  }

 private:
  std::vector<std::vector<float>> values_;
};

void FillMetadata(GgufWriter& w) {
  const std::pair<const char*, uint32_t> numbers[] = {
      {"block_count", 5},  // one of them a prediction layer that is left out
      {"nextn_predict_layers", 1},
      {"context_length", 512},
      {"embedding_length", kHidden},
      {"feed_forward_length", 128},
      {"vocab_size", kVocab},
      {"attention.head_count", 4},
      {"attention.head_count_kv", 1},
      {"attention.key_length", 40},
      {"attention.value_length", 32},
      {"attention.key_length_mla", 24},
      {"attention.value_length_mla", 24},
      {"attention.q_lora_rank", 32},
      {"attention.kv_lora_rank", 32},
      {"attention.indexer.head_count", 8},
      {"attention.indexer.key_length", 16},
      {"attention.indexer.top_k", 8},
      {"rope.dimension_count", 8},
      {"leading_dense_block_count", 1},
      {"expert_count", kExperts},
      {"expert_used_count", 4},
      {"expert_shared_count", 1},
      {"expert_feed_forward_length", 32},
      {"expert_gating_func", 2},
  };
  w.SetString("general.architecture", "glm-dsa");
  for (const auto& [key, value] : numbers) w.SetU32(std::string("glm-dsa.") + key, value);
  w.SetF32("glm-dsa.attention.layer_norm_rms_epsilon", 1e-5f);
  w.SetF32("glm-dsa.rope.freq_base", 10000.0f);
  w.SetF32("glm-dsa.expert_weights_scale", 2.5f);
  w.SetBool("glm-dsa.expert_weights_norm", true);
  w.SetU32("tokenizer.ggml.eos_token_id", 319);
}

/// kv_b_proj, whole or as converters split it since 2025: keys transposed, values apart.
void AddKvB(GoldenGguf& g, const std::string& at, const std::string& hf, bool split) {
  constexpr size_t kHeads = 4, kNope = 16, kV = 24, kRank = 32;
  const auto kv = GoldenTensor(hf + "kv_b_proj.weight", {kHeads * (kNope + kV), kRank});
  if (!split) return g.AddValues(at + "attn_kv_b.weight", {kHeads * (kNope + kV), kRank}, kv);
  std::vector<float> k, v;
  for (size_t h = 0; h < kHeads; ++h) {
    const float* head = kv.data() + h * (kNope + kV) * kRank;
    for (size_t c = 0; c < kRank; ++c) {
      for (size_t n = 0; n < kNope; ++n) k.push_back(head[n * kRank + c]);
    }
    v.insert(v.end(), head + kNope * kRank, head + (kNope + kV) * kRank);
  }
  g.AddValues(at + "attn_k_b.weight", {kHeads, kRank, kNope}, k);
  g.AddValues(at + "attn_v_b.weight", {kHeads, kV, kRank}, v);
}

std::string WriteTinyGlm(const TempDir& dir, bool split_kv, const char* bias_name) {
  GoldenGguf g;
  FillMetadata(g.writer);
  g.Add("token_embd.weight", "model.embed_tokens.weight", {kVocab, kHidden});
  g.Add("output.weight", "lm_head.weight", {kVocab, kHidden});
  g.Add("output_norm.weight", "model.norm.weight", {kHidden});
  for (int layer = 0; layer < 4; ++layer) {
    const std::string at = fmt::format("blk.{}.", layer);
    const std::string hf = fmt::format("model.layers.{}.", layer), attn = hf + "self_attn.";
    g.Add(at + "attn_norm.weight", hf + "input_layernorm.weight", {64});
    g.Add(at + "ffn_norm.weight", hf + "post_attention_layernorm.weight", {64});
    g.Add(at + "attn_q_a.weight", attn + "q_a_proj.weight", {32, 64});
    g.Add(at + "attn_q_a_norm.weight", attn + "q_a_layernorm.weight", {32});
    g.Add(at + "attn_q_b.weight", attn + "q_b_proj.weight", {4 * 24, 32});
    g.Add(at + "attn_kv_a_mqa.weight", attn + "kv_a_proj_with_mqa.weight", {40, 64});
    g.Add(at + "attn_kv_a_norm.weight", attn + "kv_a_layernorm.weight", {32});
    AddKvB(g, at, attn, split_kv);
    g.Add(at + "attn_output.weight", attn + "o_proj.weight", {64, 4 * 24});
    g.Add(at + "indexer.attn_q_b.weight", attn + "indexer.wq_b.weight", {8 * 16, 32});
    g.Add(at + "indexer.attn_k.weight", attn + "indexer.wk.weight", {16, 64});
    g.Add(at + "indexer.k_norm.weight", attn + "indexer.k_norm.weight", {16});
    g.Add(at + "indexer.k_norm.bias", attn + "indexer.k_norm.bias", {16});
    g.Add(at + "indexer.proj.weight", attn + "indexer.weights_proj.weight", {8, 64});
    const std::string mlp = hf + "mlp.";
    for (const std::string part : {"gate", "up", "down"}) {
      const bool down = part == "down";
      if (layer == 0) {
        g.Add(at + "ffn_" + part + ".weight", mlp + part + "_proj.weight",
              down ? std::vector<size_t>{64, 128} : std::vector<size_t>{128, 64});
        continue;
      }
      g.AddExperts(at + "ffn_" + part + "_exps.weight", mlp + "experts.{}." + part + "_proj.weight",
                   down ? 64 : 32, down ? 32 : 64);
      g.Add(at + "ffn_" + part + "_shexp.weight", mlp + "shared_experts." + part + "_proj.weight",
            down ? std::vector<size_t>{64, 32} : std::vector<size_t>{32, 64});
    }
    if (layer == 0) continue;
    g.Add(at + "ffn_gate_inp.weight", mlp + "gate.weight", {kExperts, 64});
    g.Add(at + bias_name, mlp + "gate.e_score_correction_bias", {kExperts});
  }
  return g.Write(dir);
}

std::vector<float> Logits(const std::string& path) {
  return testing::Runner(path).Prefill(GoldenTokens(kTokens), kTokens);
}

TEST(GgufModel, GlmDsaMatchesTheGoldenLogits) {
  for (const bool split : {true, false}) {
    TempDir dir;
    const auto logits =
        Logits(WriteTinyGlm(dir, split, split ? "exp_probs_b.bias" : "exp_probs_b.weight"));
    ASSERT_EQ(logits.size(), kTokens * kVocab);
    const float* last = logits.data() + (kTokens - 1) * kVocab;
    const double wanted[] = {-1.36838, 0.64910, -0.59202, -1.15132, 0.04812, 0.13414};
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(last[i], wanted[i], 2e-4) << i;
    double squares = 0.0;
    for (const float x : logits) squares += double{x} * x;
    EXPECT_NEAR(squares, 7671.684, 0.05);
  }
}

TEST(GgufModel, WhatIsMissingIsNamed) {
  TempDir dir;
  GoldenGguf g;
  FillMetadata(g.writer);
  g.Add("token_embd.weight", "model.embed_tokens.weight", {kVocab, kHidden});
  ThreadPool pool(1);
  const auto model = Model::Load(g.Write(dir), pool);
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find(
                "model.layers.0.input_layernorm.weight: missing, wanted shape [64]"),
            std::string::npos)
      << model.error().message;
}

std::string ErrorOf(const GgufWriter& writer) {
  TempDir dir;
  const std::string path = dir.path() + "/m.gguf";
  EXPECT_TRUE(writer.Write(path, [](const ByteSink&) { return Status(); }));
  const auto config = LoadModelConfig(path);
  return config ? "(no error)" : config.error().message.substr(path.size());
}

TEST(GgufModel, BadMetadataIsNamed) {
  GgufWriter none;
  EXPECT_NE(ErrorOf(none).find(": general.architecture is not there; wanted one of glm-dsa"),
            std::string::npos);
  GgufWriter other;
  other.SetString("general.architecture", "mamba");
  EXPECT_NE(
      ErrorOf(other).find("architecture 'mamba' is not supported; supported: glm-dsa, glm4moe"),
      std::string::npos);
  GgufWriter number;
  number.SetU32("general.architecture", 3);
  EXPECT_NE(ErrorOf(number).find("general.architecture: wanted a string, got u32"),
            std::string::npos);
  GgufWriter wrong;
  wrong.SetString("general.architecture", "glm-dsa");
  wrong.SetString("glm-dsa.block_count", "many");
  EXPECT_NE(
      ErrorOf(wrong).find("glm-dsa.block_count: wanted a whole number that is not negative, got "
                          "string"),
      std::string::npos);
  GgufWriter empty;
  empty.SetString("general.architecture", "glm-dsa");
  EXPECT_NE(ErrorOf(empty).find("metadata: vocab_size: wanted"), std::string::npos)
      << ErrorOf(empty);
}

}  // namespace
}  // namespace carpool
