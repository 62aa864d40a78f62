#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "lab/convert.h"
#include "lab/gguf_metadata.h"
#include "models/model_weights.h"
#include "quant/gguf_encode.h"

namespace carpool {
namespace {

constexpr size_t kMaxTokenizerBytes = size_t{512} << 20;

/// What a matrix is for.
enum class Part { kPlain, kMlp, kRouter };

/// A tensor of the file and how its bytes come about.
struct Planned {
  std::string name;
  Storage storage;
  std::vector<uint64_t> dims;  // inputs first
  std::function<Status(const ByteSink&)> write;
};

class GgufConverter {
 public:
  GgufConverter(const ModelConfig& config, const ModelWeights& weights,
                const ConvertOptions& options, ThreadPool& pool)
      : config_(config), weights_(weights), options_(options), pool_(pool) {}

  void Plan() {
    Matrix("token_embd", weights_.embed_tokens, Part::kPlain);
    Vector("output_norm.weight", weights_.norm);
    if (!config_.tie_embeddings) Matrix("output", weights_.lm_head, Part::kPlain);
    RopeFreqs();
    for (size_t i = 0; i < weights_.layers.size(); ++i) Layer(i);
  }
  const std::vector<Planned>& tensors() const { return tensors_; }

 private:
  Storage TargetOf(const StoredMatrix& m, Part part) const {
    if (part == Part::kRouter) return Storage::kF32;
    Storage wanted = m.storage;
    if (options_.type) {
      const bool fp4 = *options_.type == Storage::kNVFP4 || *options_.type == Storage::kMXFP4;
      if (!fp4 || part == Part::kMlp) wanted = *options_.type;
    }
    if (wanted == Storage::kNVFP4 && m.cols % 64 == 0) return Storage::kGgufNVFP4;
    if (wanted == Storage::kMXFP4 && m.cols % 32 == 0) return Storage::kGgufMXFP4;
    if (wanted == Storage::kQ8_0) return m.cols % 32 == 0 ? Storage::kQ8_0 : Storage::kF16;
    if (wanted == Storage::kF32 || wanted == Storage::kF16) return wanted;
    return Storage::kBF16;
  }

  void Vector(std::string name, const std::vector<float>& values, std::vector<uint64_t> dims = {}) {
    if (values.empty()) return;
    if (dims.empty()) dims = {values.size()};
    tensors_.push_back(
        {std::move(name), Storage::kF32, std::move(dims),
         [&values](const ByteSink& sink) { return sink(std::as_bytes(std::span(values))); }});
  }

  /// One matrix, or one of every expert stacked; base name without ".weight". Factors of the whole
  /// (NVFP4) go into base.scale.
  void Matrices(const std::string& base, std::vector<const StoredMatrix*> all, Part part,
                std::vector<uint64_t> dims, std::vector<size_t> row_of = {}) {
    if (all.empty() || all.front()->rows == 0) return;
    const Storage target = TargetOf(*all.front(), part);
    auto scales = std::make_shared<std::vector<float>>();
    const uint64_t count = all.size();
    tensors_.push_back({base + ".weight", target, std::move(dims),
                        [this, all = std::move(all), target, scales,
                         row_of = std::move(row_of)](const ByteSink& sink) -> Status {
                          for (const StoredMatrix* m : all) {
                            ASSIGN_OR_RETURN(const GgufMatrix encoded,
                                             EncodeGguf(*m, target, pool_, row_of));
                            scales->push_back(encoded.scale);
                            RETURN_IF_ERROR(sink(encoded.bytes));
                          }
                          return {};
                        }});
    if (target != Storage::kGgufNVFP4) return;
    tensors_.push_back({base + ".scale", Storage::kF32, {count}, [scales](const ByteSink& sink) {
                          return sink(std::as_bytes(std::span(*scales)));
                        }});
  }
  void Matrix(const std::string& base, const StoredMatrix& m, Part part,
              std::vector<size_t> row_of = {}) {
    Matrices(base, {&m}, part, {m.cols, m.rows}, std::move(row_of));
  }

  /// Rows of q or k as architecture "llama" wants them: each head's two halves interleaved.
  std::vector<size_t> RopeOrder(size_t heads) const {
    if ((config_.model_type != "llama" && config_.model_type != "mixtral") ||
        config_.rope_interleave) {
      return {};
    }
    const size_t dim = config_.gqa.head_dim;
    std::vector<size_t> from;
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < dim; ++i) from.push_back(h * dim + i % 2 * (dim / 2) + i / 2);
    }
    return from;
  }

  void Layer(size_t index) {
    const LayerWeights& layer = weights_.layers[index];
    const std::string at = fmt::format("blk.{}.", index);
    Vector(at + "attn_norm.weight", layer.input_norm);
    const bool post = config_.model_type == "glm4_moe" || config_.model_type == "gpt_oss";
    Vector(at + (post ? "post_attention_norm.weight" : "ffn_norm.weight"),
           layer.post_attention_norm);
    if (layer.gqa) Gqa(at, *layer.gqa);
    if (layer.mla) Mla(at, *layer.mla);
    if (layer.indexer) Indexer(at, *layer.indexer);
    if (layer.dense) Mlp(at, "", *layer.dense);
    if (layer.moe) Moe(at, *layer.moe);
  }

  void Gqa(const std::string& at, const GqaWeights& w) {
    Matrix(at + "attn_q", w.q, Part::kPlain, RopeOrder(config_.num_heads));
    Matrix(at + "attn_k", w.k, Part::kPlain, RopeOrder(config_.gqa.kv_heads));
    Matrix(at + "attn_v", w.v, Part::kPlain);
    Matrix(at + "attn_output", w.o, Part::kPlain);
    Vector(at + "attn_q.bias", w.q_bias);
    Vector(at + "attn_k.bias", w.k_bias);
    Vector(at + "attn_v.bias", w.v_bias);
    Vector(at + "attn_output.bias", w.o_bias);
    Vector(at + "attn_q_norm.weight", w.q_norm);
    Vector(at + "attn_k_norm.weight", w.k_norm);
    Vector(at + "attn_sinks.weight", w.sinks);
  }

  void Mla(const std::string& at, const MlaWeights& w) {
    if (w.q_a.rows > 0) {
      Matrix(at + "attn_q_a", w.q_a, Part::kPlain);
      Vector(at + "attn_q_a_norm.weight", w.q_a_norm);
      Matrix(at + "attn_q_b", w.q_b, Part::kPlain);
    } else {
      Matrix(at + "attn_q", w.q_b, Part::kPlain);
    }
    Matrix(at + "attn_kv_a_mqa", w.kv_a, Part::kPlain);
    Vector(at + "attn_kv_a_norm.weight", w.kv_a_norm);
    SplitKvB(at, w.kv_b);
    Matrix(at + "attn_output", w.o, Part::kPlain);
  }

  /// kv_b_proj [heads * (nope + v), rank] -> keys transposed [heads][rank][nope] and values
  /// [heads][v][rank].
  void SplitKvB(const std::string& at, const StoredMatrix& kv_b) {
    const uint64_t nope = config_.mla.nope_dim, v = config_.mla.v_dim, heads = config_.num_heads;
    const uint64_t rank = config_.mla.kv_lora_rank;
    const Storage kept = kv_b.storage == Storage::kF32 ? Storage::kF32 : Storage::kBF16;
    const Storage target =
        options_.type && (*options_.type == Storage::kF32 || *options_.type == Storage::kF16)
            ? *options_.type
            : kept;
    const auto add = [&](const char* name, std::vector<uint64_t> dims, bool keys) {
      tensors_.push_back(
          {at + name, target, std::move(dims),
           [this, &kv_b, target, nope, v, heads, rank, keys](const ByteSink& sink) -> Status {
             std::vector<float> head((keys ? nope : v) * rank), row(rank);
             for (uint64_t h = 0; h < heads; ++h) {
               const uint64_t first = h * (nope + v) + (keys ? 0 : nope);
               for (uint64_t r = 0; r < (keys ? nope : v); ++r) {
                 DequantizeRow(kv_b, first + r, row.data());
                 for (uint64_t c = 0; c < rank; ++c)
                   head[keys ? c * nope + r : r * rank + c] = row[c];
               }
               StoredMatrix m;
               m.rows = keys ? rank : v;
               m.cols = keys ? nope : rank;
               m.data = reinterpret_cast<const std::byte*>(head.data());
               ASSIGN_OR_RETURN(const GgufMatrix encoded, EncodeGguf(m, target, pool_));
               RETURN_IF_ERROR(sink(encoded.bytes));
             }
             return {};
           }});
    };
    add("attn_k_b.weight", {nope, rank, heads}, true);
    add("attn_v_b.weight", {rank, v, heads}, false);
  }

  void Indexer(const std::string& at, const IndexerWeights& w) {
    Matrix(at + "indexer.attn_q_b", w.wq_b, Part::kPlain);
    Matrix(at + "indexer.attn_k", w.wk, Part::kPlain);
    Vector(at + "indexer.k_norm.weight", w.k_norm);
    Vector(at + "indexer.k_norm.bias", w.k_norm_bias);
    Matrix(at + "indexer.proj", w.weights_proj, Part::kPlain);
  }

  void Mlp(const std::string& at, const std::string& suffix, const GatedMlpWeights& w) {
    Matrix(at + "ffn_gate" + suffix, w.gate, Part::kMlp);
    Matrix(at + "ffn_up" + suffix, w.up, Part::kMlp);
    Matrix(at + "ffn_down" + suffix, w.down, Part::kMlp);
    Vector(at + "ffn_gate" + suffix + ".bias", w.gate_bias);
    Vector(at + "ffn_up" + suffix + ".bias", w.up_bias);
    Vector(at + "ffn_down" + suffix + ".bias", w.down_bias);
  }

  void Moe(const std::string& at, const MoeWeights& w) {
    Matrix(at + "ffn_gate_inp", w.router, Part::kRouter);
    Vector(at + "ffn_gate_inp.bias", w.router_bias);
    Vector(at + "exp_probs_b.bias", w.correction_bias);
    Experts(at + "ffn_gate_exps", w, &GatedMlpWeights::gate, &GatedMlpWeights::gate_bias);
    Experts(at + "ffn_up_exps", w, &GatedMlpWeights::up, &GatedMlpWeights::up_bias);
    Experts(at + "ffn_down_exps", w, &GatedMlpWeights::down, &GatedMlpWeights::down_bias);
    if (w.shared) Mlp(at, "_shexp", *w.shared);
    if (w.shared_gate.rows > 0) {
      Matrices(at + "ffn_gate_inp_shexp", {&w.shared_gate}, Part::kRouter, {w.shared_gate.cols});
    }
  }

  void Experts(const std::string& base, const MoeWeights& w, StoredMatrix GatedMlpWeights::*matrix,
               std::vector<float> GatedMlpWeights::*bias) {
    std::vector<const StoredMatrix*> all;
    for (const auto& expert : w.experts) all.push_back(&(expert.*matrix));
    const uint64_t cols = all.front()->cols, rows = all.front()->rows, count = all.size();
    Matrices(base, std::move(all), Part::kMlp, {cols, rows, count});
    if ((w.experts.front().*bias).empty()) return;
    tensors_.push_back(
        {base + ".bias", Storage::kF32, {rows, count}, [&w, bias](const ByteSink& sink) -> Status {
           for (const auto& expert : w.experts)
             RETURN_IF_ERROR(sink(std::as_bytes(std::span(expert.*bias))));
           return {};
         }});
  }

  /// The divisors of Llama 3's frequencies.
  void RopeFreqs() {
    if (config_.rope.scaling != RopeScaling::kLlama3) return;
    RopeSpec plain = config_.rope;
    plain.scaling = RopeScaling::kNone;
    const auto slow = RopeFrequencies(config_.rope), fast = RopeFrequencies(plain);
    for (size_t i = 0; i < slow.size(); ++i) rope_freqs_.push_back(fast[i] / slow[i]);
    Vector("rope_freqs.weight", rope_freqs_);
  }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const ConvertOptions& options_;
  ThreadPool& pool_;
  std::vector<Planned> tensors_;
  std::vector<float> rope_freqs_;
};

Status WriteGgufTokenizer(const std::string& dir, const ModelConfig& config, GgufWriter& writer) {
  const std::string path = dir + "/tokenizer.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) {
    writer.SetString("tokenizer.ggml.model", "none");
    if (!config.eos_ids.empty())
      writer.SetU32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_ids.front()));
    return {};
  }
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(const TokenizerSpec spec, ParseTokenizerJson(text, path));
  ASSIGN_OR_RETURN(TokenizerConfig tokenizer, LoadTokenizerConfig(dir));
  if (const std::string jinja = dir + "/chat_template.jinja"; std::filesystem::exists(jinja, ec)) {
    ASSIGN_OR_RETURN(std::string source, ReadTextFile(jinja));
    tokenizer.chat_templates = {{"default", std::move(source)}};
  }
  return WriteTokenizerMetadata(spec, tokenizer, config, writer);
}

}  // namespace

Result<ConvertReport> ConvertToGguf(const std::string& dir, const std::string& path,
                                    const ConvertOptions& options, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  TensorBinder binder(checkpoint);
  ASSIGN_OR_RETURN(const ModelWeights weights, BindModel(config, binder));
  GgufWriter writer;
  RETURN_IF_ERROR(WriteModelMetadata(config, writer));
  RETURN_IF_ERROR(WriteGgufTokenizer(dir, config, writer));
  GgufConverter converter(config, weights, options, pool);
  converter.Plan();
  for (const Planned& t : converter.tensors())
    writer.AddTensor(t.name, *GgmlTypeOf(t.storage), t.dims);
  size_t done = 0;
  RETURN_IF_ERROR(writer.Write(path, [&](const ByteSink& sink) -> Status {
    for (const Planned& t : converter.tensors()) {
      if (Status one = t.write(sink); !one) return one;
      if (options.progress) options.progress(++done, converter.tensors().size());
    }
    return {};
  }));
  std::error_code ec;
  return ConvertReport{converter.tensors().size(), std::filesystem::file_size(path, ec)};
}

}  // namespace carpool
