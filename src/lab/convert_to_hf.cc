#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/output_file.h"
#include "lab/convert.h"
#include "models/model_config.h"
#include "quant/encode.h"
#include "quant/gguf_encode.h"
#include "tokenizer/gguf_tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/gguf_config.h"
#include "weights/safetensors_writer.h"

namespace carpool {
namespace {

using OrderedJson = nlohmann::ordered_json;

StoredMatrix View(const TensorInfo& t) {
  StoredMatrix m;
  m.name = t.name;
  m.storage = t.blocks;
  m.cols = t.ndim == 0 ? 1 : t.shape[t.ndim - 1];
  m.rows = 1;
  for (size_t i = 0; i + 1 < t.ndim; ++i) m.rows *= t.shape[i];
  m.data = t.data;
  m.data_bytes = t.bytes;
  return m;
}

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, const ModelConfig& config, const ConvertOptions& options,
            ThreadPool& pool)
      : checkpoint_(checkpoint), config_(config), options_(options), pool_(pool) {}

  void Plan() {
    for (const TensorInfo& t : checkpoint_.tensors()) {
      if (t.name.ends_with(".weight_scale_2") && Fp4(t.name.substr(0, t.name.size() - 15)))
        continue;  // written with its weight
      const Storage target = TargetOf(t);
      const auto name = std::string(t.name);
      const std::string module = name.substr(0, name.size() - std::string(".weight").size());
      if (target == Storage::kNVFP4) {
        Add(module + ".weight", Dtype::kU8, {t.shape[0], t.shape[1] / 2});
        Add(module + ".weight_scale", Dtype::kF8E4M3, {t.shape[0], t.shape[1] / 16});
        Add(module + ".weight_scale_2", Dtype::kF32, {});
      } else if (target == Storage::kMXFP4) {
        Add(module + ".weight_packed", Dtype::kU8, {t.shape[0], t.shape[1] / 2});
        Add(module + ".weight_scale", Dtype::kU8, {t.shape[0], t.shape[1] / 32});
      } else {
        const Dtype dtype = target == Storage::kF32   ? Dtype::kF32
                            : target == Storage::kF16 ? Dtype::kF16
                                                      : Dtype::kBF16;
        Add(name, dtype, {t.shape, t.shape + t.ndim});
      }
      sources_.push_back({&t, target});
    }
  }
  const std::vector<PlannedTensor>& tensors() const { return tensors_; }

  Status Write(const ByteSink& sink) {
    size_t done = 0;
    for (const auto& [t, target] : sources_) {
      if (Status one = WriteOne(*t, target, sink); !one) return one;
      if (options_.progress) options_.progress(++done, sources_.size());
    }
    return {};
  }

 private:
  void Add(std::string name, Dtype dtype, std::vector<uint64_t> shape) {
    uint64_t bytes = DtypeBytes(dtype);
    for (const uint64_t d : shape) bytes *= d;
    tensors_.push_back({std::move(name), dtype, std::move(shape), bytes});
  }

  bool Fp4(std::string_view module) const {
    const TensorInfo* t = checkpoint_.Find(std::string(module) + ".weight");
    return t != nullptr && t->dtype == Dtype::kGgufBlocks;
  }

  Storage TargetOf(const TensorInfo& t) const {
    const Storage stored = t.blocks;
    const bool router = t.name.ends_with(".gate.weight") || t.name.ends_with(".router.weight");
    if (t.ndim < 2 || router) return t.dtype == Dtype::kGgufBlocks ? Storage::kF32 : stored;
    const bool mlp =
        t.name.find(".mlp.") != t.name.npos || t.name.find(".block_sparse_moe.") != t.name.npos;
    const bool fp4_wanted =
        options_.type && (*options_.type == Storage::kNVFP4 || *options_.type == Storage::kMXFP4);
    Storage target = stored;
    if (options_.type && (!fp4_wanted || mlp)) target = *options_.type;
    if (target == Storage::kGgufNVFP4) target = Storage::kNVFP4;
    if (target == Storage::kGgufMXFP4) target = Storage::kMXFP4;
    const uint64_t cols = t.shape[t.ndim - 1];
    if (target == Storage::kNVFP4 && cols % 16 == 0) return target;
    if (target == Storage::kMXFP4 && cols % 32 == 0) return target;
    if (target == Storage::kF32 || target == Storage::kF16) return target;
    return Storage::kBF16;
  }

  /// Where row r of the result lies: q and k of architecture "llama" get the order of half-split
  /// rope back.
  std::vector<size_t> RowOrder(const TensorInfo& t, size_t rows) const {
    const bool q_or_k = t.name.ends_with(".q_proj.weight") || t.name.ends_with(".k_proj.weight") ||
                        t.name.ends_with(".q_proj.bias") || t.name.ends_with(".k_proj.bias");
    if (config_.attention != AttentionKind::kGqa || !config_.rope_interleave || !q_or_k) return {};
    const size_t dim = config_.gqa.head_dim;
    std::vector<size_t> from;
    for (size_t r = 0; r < rows; ++r) {
      const size_t i = r % dim;
      from.push_back(r - i + i % (dim / 2) * 2 + i / (dim / 2));
    }
    return from;
  }

  Status WriteOne(const TensorInfo& t, Storage target, const ByteSink& sink) {
    StoredMatrix m = View(t);
    if (t.ndim == 1) std::swap(m.rows, m.cols);
    if (t.dtype == Dtype::kGgufBlocks) {
      const std::string module(t.name.substr(0, t.name.size() - 7));
      if (const TensorInfo* scale = checkpoint_.Find(module + ".weight_scale_2"))
        std::memcpy(&m.global_scale, scale->data, sizeof(float));
    }
    const auto order = RowOrder(t, m.rows);
    if (target != Storage::kNVFP4 && target != Storage::kMXFP4) {
      ASSIGN_OR_RETURN(const GgufMatrix out, EncodeGguf(m, target, pool_, order));
      return sink(out.bytes);
    }
    const bool nv = target == Storage::kNVFP4;
    if (t.blocks != (nv ? Storage::kGgufNVFP4 : Storage::kGgufMXFP4)) {
      ASSIGN_OR_RETURN(const EncodedMatrix out, EncodeMatrix(m, target, pool_));
      return WriteFp4(out.matrix.data, out.matrix.scales, out.matrix.view.global_scale, nv, sink);
    }
    std::vector<std::byte> codes(m.rows * m.cols / 2), scales(m.rows * m.cols / (nv ? 16 : 32));
    SplitFp4Blocks(t.blocks, t.data, m.rows * m.cols, codes.data(), scales.data());
    return WriteFp4(codes, scales, m.global_scale, nv, sink);
  }

  static Status WriteFp4(std::span<const std::byte> codes, std::span<const std::byte> scales,
                         float factor, bool nv, const ByteSink& sink) {
    RETURN_IF_ERROR(sink(codes));
    RETURN_IF_ERROR(sink(scales));
    return nv ? sink(std::as_bytes(std::span(&factor, 1))) : Status();
  }

  struct Source {
    const TensorInfo* tensor;
    Storage target;
  };
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const ConvertOptions& options_;
  ThreadPool& pool_;
  std::vector<Source> sources_;
  std::vector<PlannedTensor> tensors_;
};

Status WriteTokenizer(const GgufModel& model, const std::string& dir) {
  auto json = GgufTokenizerJson(model);
  if (!json && json.error().code == ErrorCode::kNotFound) return {};
  if (!json) return json.error();
  RETURN_IF_ERROR(WriteTextFile(dir + "/tokenizer.json", *json));
  ASSIGN_OR_RETURN(const TokenizerConfig config, GgufTokenizerConfig(model));
  OrderedJson out = OrderedJson::object();
  for (const auto& [name, text] : config.special_tokens) out[name] = text;
  if (config.chat_templates.size() == 1) {
    out["chat_template"] = config.chat_templates.front().second;
  } else if (!config.chat_templates.empty()) {
    for (const auto& [name, source] : config.chat_templates)
      out["chat_template"].push_back({{"name", name}, {"template", source}});
  }
  return WriteTextFile(dir + "/tokenizer_config.json",
                       out.dump(1, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace

Result<ConvertReport> ConvertToHuggingFace(const std::string& path, const std::string& dir,
                                           const ConvertOptions& options, ThreadPool& pool) {
  ASSIGN_OR_RETURN(const GgufModel model, GgufModel::Open(path));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(path));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  ASSIGN_OR_RETURN(const std::string text, GgufConfigJson(model));
  std::error_code ec;
  std::filesystem::create_directories(dir, ec);
  if (ec || !std::filesystem::is_empty(dir, ec)) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: wanted a new or empty directory", dir);
  }
  auto json = OrderedJson::parse(text);
  if (config.attention == AttentionKind::kGqa) json.erase("rope_interleave");  // undone here
  Converter converter(checkpoint, config, options, pool);
  converter.Plan();
  const std::string target = dir + "/model.safetensors";
  RETURN_IF_ERROR(WriteSafetensors(target, converter.tensors(),
                                   [&](const ByteSink& sink) { return converter.Write(sink); }));
  RETURN_IF_ERROR(WriteTokenizer(model, dir));
  RETURN_IF_ERROR(WriteTextFile(dir + "/config.json", json.dump(1)));
  return ConvertReport{converter.tensors().size(), std::filesystem::file_size(target, ec)};
}

}  // namespace carpool
