#include "models/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "carpool/source_dir.h"
#include "models/model_summary.h"
#include "weights/test_files.h"

namespace carpool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SafetensorsBytes;
using testing::TempDir;
using testing::TestTensor;

const std::string kBundled = CARPOOL_SOURCE_DIR "/models/books-20m";

TEST(ModelWeights, BindsTheBundledModel) {
  auto checkpoint = Checkpoint::OpenDirectory(kBundled);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  auto config = LoadModelConfig(kBundled);
  ASSERT_TRUE(config) << config.error().message;
  auto quant = QuantConfig::Load(kBundled);
  ASSERT_TRUE(quant) << quant.error().message;
  TensorBinder binder(*checkpoint, *quant);
  auto weights = BindModel(*config, binder);
  ASSERT_TRUE(weights) << weights.error().message;
  ASSERT_EQ(weights->layers.size(), 6u);
  EXPECT_TRUE(weights->layers[0].dense.has_value());
  ASSERT_TRUE(weights->layers[5].moe.has_value());
  const auto& moe = *weights->layers[5].moe;
  ASSERT_EQ(moe.experts.size(), 128u);
  EXPECT_EQ(moe.experts[127].down.storage, Storage::kNVFP4);
  EXPECT_EQ(moe.experts[127].down.rows, 256u);
  EXPECT_EQ(moe.experts[127].down.cols, 32u);
  EXPECT_EQ(moe.router.storage, Storage::kBF16);
  EXPECT_TRUE(moe.shared.has_value());
  EXPECT_EQ(moe.correction_bias.size(), 128u);
  for (const auto& m : {moe.experts[3].gate, moe.experts[3].up, moe.experts[3].down}) {
    EXPECT_TRUE(ValidateScales(m));
  }
  const auto& report = binder.report();
  EXPECT_TRUE(report.unused.empty());
  EXPECT_TRUE(report.warnings.empty()) << report.warnings[0];
  // 5 layers x 128 experts x 3 matrices of 8,192 weights: 4 bits, an e4m3 scale per 16, one fp32
  // factor.
  EXPECT_EQ(report.tensor_bytes.at("nvfp4"), 5u * 128 * 3 * (8192 / 2 + 8192 / 16 + 4));
  EXPECT_EQ(report.tensor_bytes.at("f32"), 5u * 128 * 4);
  EXPECT_GT(report.parameters, 19'000'000u);
  EXPECT_LT(report.parameters, 22'000'000u);
}

/// Two layers, the second sparse with a shared indexer; every weight 0.
ModelConfig Tiny() {
  ModelConfig c;
  c.model_type = "glm_moe_dsa";
  c.vocab_size = 10;
  c.hidden = 4;
  c.num_layers = 2;
  c.dense_width = 6;
  c.expert_width = 3;
  c.num_shared_experts = 2;
  c.shared_width = 6;
  c.attention = AttentionKind::kMla;
  c.mlp = {MlpKind::kDense, MlpKind::kSparse};
  c.gate.num_experts = 2;
  c.gate.top_k = 1;
  c.gate.has_bias = true;
  c.num_heads = 2;
  c.mla.q_lora_rank = 5;
  c.mla.kv_lora_rank = 7;
  c.mla.nope_dim = 3;
  c.mla.rope_dim = 2;
  c.mla.v_dim = 4;
  c.mla.indexer = {IndexerKind::kFull, IndexerKind::kShared};
  c.mla.index_heads = 2;
  c.mla.index_dim = 4;
  c.num_mtp_layers = 1;
  return c;
}

void Add(std::vector<TestTensor>& all, const std::string& name, std::vector<size_t> shape) {
  size_t bytes = 4;
  for (const size_t d : shape) bytes *= d;
  all.push_back({name, "F32", std::move(shape), std::string(bytes, '\0')});
}

std::vector<TestTensor> TinyTensors() {
  std::vector<TestTensor> all;
  Add(all, "model.embed_tokens.weight", {10, 4});
  Add(all, "lm_head.weight", {10, 4});
  Add(all, "model.norm.weight", {4});
  for (const std::string at : {"model.layers.0.", "model.layers.1."}) {
    Add(all, at + "input_layernorm.weight", {4});
    Add(all, at + "post_attention_layernorm.weight", {4});
    Add(all, at + "self_attn.q_a_proj.weight", {5, 4});
    Add(all, at + "self_attn.q_a_layernorm.weight", {5});
    Add(all, at + "self_attn.q_b_proj.weight", {10, 5});
    Add(all, at + "self_attn.kv_a_proj_with_mqa.weight", {9, 4});
    Add(all, at + "self_attn.kv_a_layernorm.weight", {7});
    Add(all, at + "self_attn.kv_b_proj.weight", {14, 7});
    Add(all, at + "self_attn.o_proj.weight", {4, 8});
  }
  const std::string indexer = "model.layers.0.self_attn.indexer.";
  Add(all, indexer + "wq_b.weight", {8, 5});
  Add(all, indexer + "wk.weight", {4, 4});
  Add(all, indexer + "k_norm.weight", {4});
  Add(all, indexer + "k_norm.bias", {4});
  Add(all, indexer + "weights_proj.weight", {2, 4});
  Add(all, "model.layers.0.mlp.gate_proj.weight", {6, 4});
  Add(all, "model.layers.0.mlp.up_proj.weight", {6, 4});
  Add(all, "model.layers.0.mlp.down_proj.weight", {4, 6});
  const std::string mlp = "model.layers.1.mlp.";
  Add(all, mlp + "gate.weight", {2, 4});
  Add(all, mlp + "gate.e_score_correction_bias", {2});
  for (const std::string e : {"experts.0.", "experts.1."}) {
    Add(all, mlp + e + "gate_proj.weight", {3, 4});
    Add(all, mlp + e + "up_proj.weight", {3, 4});
    Add(all, mlp + e + "down_proj.weight", {4, 3});
  }
  Add(all, mlp + "shared_experts.gate_proj.weight", {6, 4});
  Add(all, mlp + "shared_experts.up_proj.weight", {6, 4});
  Add(all, mlp + "shared_experts.down_proj.weight", {4, 6});
  return all;
}

/// Binds `tensors`; the error, or "" and the report.
std::string Bind(const ModelConfig& config, const std::vector<TestTensor>& tensors,
                 LoadReport* report = nullptr, ModelWeights* out = nullptr) {
  const TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(tensors));
  auto checkpoint = Checkpoint::OpenDirectory(dir.path());
  if (!checkpoint) return checkpoint.error().message;
  TensorBinder binder(*checkpoint);
  auto weights = BindModel(config, binder);
  if (!weights) return weights.error().message;
  if (report != nullptr) *report = binder.report();
  if (out != nullptr) *out = std::move(*weights);
  return "";
}

void Remove(std::vector<TestTensor>& all, std::string_view part) {
  std::erase_if(all, [&](const TestTensor& t) { return t.name.find(part) != t.name.npos; });
}

TEST(ModelWeights, AbsentMtpLayerIsNoted) {
  LoadReport report;
  ModelWeights w;
  EXPECT_EQ(Bind(Tiny(), TinyTensors(), &report, &w), "");
  EXPECT_THAT(report.missing_optional, ElementsAre("MTP layer 2"));
  EXPECT_TRUE(report.unused.empty());
  EXPECT_TRUE(w.layers[0].indexer.has_value());
  EXPECT_FALSE(w.layers[1].indexer.has_value());
}

TEST(ModelWeights, PresentMtpLayerIsBound) {
  auto tensors = TinyTensors();
  for (const TestTensor& tensor :
       TinyTensors()) {  // a sparse layer like layer 1, with the indexer of layer 0
    for (const std::string from : {"model.layers.1.", "model.layers.0.self_attn.indexer."}) {
      if (!tensor.name.starts_with(from)) continue;
      Add(tensors, "model.layers.2." + tensor.name.substr(std::string("model.layers.1.").size()),
          tensor.shape);
    }
  }
  const std::string at = "model.layers.2.";
  Add(tensors, at + "eh_proj.weight", {4, 8});
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
    Add(tensors, at + norm + ".weight", {4});
  LoadReport report;
  ModelWeights w;
  EXPECT_EQ(Bind(Tiny(), tensors, &report, &w), "");
  EXPECT_TRUE(report.missing_optional.empty());
  EXPECT_TRUE(report.unused.empty());
  ASSERT_EQ(w.mtp.size(), 1u);
  EXPECT_EQ(w.layers.size(), 2u);
  EXPECT_EQ(w.mtp[0].eh_proj.cols, 8u);
  EXPECT_TRUE(w.mtp[0].layer.indexer.has_value());
  EXPECT_EQ(w.mtp[0].layer.moe->experts.size(), 2u);
  EXPECT_EQ(w.mtp[0].lm_head.data, w.lm_head.data);  // the model's

  Add(tensors, at + "shared_head.head.weight", {10, 4});
  EXPECT_EQ(Bind(Tiny(), tensors, nullptr, &w), "");
  EXPECT_NE(w.mtp[0].lm_head.data, w.lm_head.data);  // its own
  Remove(tensors, "layers.2.mlp.experts.1.up_proj");
  EXPECT_THAT(Bind(Tiny(), tensors),
              HasSubstr("model.layers.2.mlp.experts.1.up_proj.weight: missing"));
}

TEST(ModelWeights, UnusableMtpAndSharedIndexerTensorsAreNotUnused) {
  auto tensors = TinyTensors();
  Add(tensors, "model.layers.2.enorm.weight", {4});
  Add(tensors, "model.layers.1.self_attn.indexer.wk.weight", {4, 4});
  Add(tensors, "model.layers.20.enorm.weight", {4});
  LoadReport report;
  EXPECT_EQ(Bind(Tiny(), tensors, &report), "");
  EXPECT_THAT(report.missing_optional, ElementsAre("MTP layer 2 (it has no eh_proj)"));
  EXPECT_THAT(report.unused, ElementsAre("model.layers.20.enorm.weight"));
}

TEST(ModelWeights, TiedHeadAndFusedExperts) {
  auto tensors = TinyTensors();
  Remove(tensors, "lm_head");
  Remove(tensors, "mlp.experts.");
  EXPECT_THAT(Bind(Tiny(), tensors), HasSubstr("lm_head.weight: missing, wanted shape [10, 4]"));
  Add(tensors, "model.layers.1.mlp.experts.gate_up_proj", {2, 6, 4});
  Add(tensors, "model.layers.1.mlp.experts.down_proj", {2, 4, 3});
  auto config = Tiny();
  config.tie_embeddings = true;
  ModelWeights w;
  EXPECT_EQ(Bind(config, tensors, nullptr, &w), "");
  EXPECT_EQ(w.lm_head.data, w.embed_tokens.data);
  const auto& e = w.layers[1].moe->experts;
  EXPECT_EQ(e[0].up.data - e[0].gate.data, 3 * 4 * 4);
  EXPECT_EQ(e[1].gate.data - e[0].gate.data, 6 * 4 * 4);
}

TEST(ModelWeights, BiasesAreBoundWhenTheConfigSaysSo) {
  auto config = Tiny();
  config.mla.bias = true;
  auto tensors = TinyTensors();
  EXPECT_THAT(Bind(config, tensors), HasSubstr("o_proj.bias: missing"));
  for (const std::string at : {"model.layers.0.", "model.layers.1."}) {
    Add(tensors, at + "self_attn.q_a_proj.bias", {5});
    Add(tensors, at + "self_attn.kv_a_proj_with_mqa.bias", {9});
    Add(tensors, at + "self_attn.o_proj.bias", {4});
  }
  ModelWeights w;
  EXPECT_EQ(Bind(config, tensors, nullptr, &w), "");
  EXPECT_EQ(w.layers[1].mla->kv_a_bias.size(), 9u);
}

TEST(ModelWeights, EveryTensorIsNeeded) {
  const auto tensors = TinyTensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto fewer = tensors;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_THAT(Bind(Tiny(), fewer), HasSubstr(tensors[i].name + ": missing"));
    auto wrong = tensors;
    wrong[i].shape.push_back(1);
    EXPECT_THAT(Bind(Tiny(), wrong), HasSubstr(tensors[i].name + ": wanted"));
  }
}

TEST(ModelWeights, AConfigThatPromisesTooMuchFailsQuickly) {
  auto config = Tiny();
  config.num_layers = 1024;
  config.mlp.assign(1024, MlpKind::kSparse);
  config.mla.indexer.assign(1024, IndexerKind::kFull);
  config.gate.num_experts = 4096;
  const std::string error = Bind(config, TinyTensors());
  EXPECT_THAT(error, HasSubstr("tensors cannot be loaded"));
  EXPECT_LT(error.size(), 4000u);
}

TEST(ModelSummary, BundledModel) {
  const auto s = SummarizeModel(kBundled);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->quantization, "NVFP4");
  EXPECT_EQ(s->expert_bytes, 3u * (8192 / 2 + 8192 / 16 + 4));
  EXPECT_EQ(s->report.parameters - s->active_parameters, 5u * 120 * 3 * 8192);
}

}  // namespace
}  // namespace carpool
