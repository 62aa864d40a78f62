#include "lab/quantize.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/aligned.h"
#include "base/mapped_file.h"
#include "base/output_file.h"
#include "quant/encode.h"
#include "weights/checkpoint.h"
#include "weights/safetensors_writer.h"
#include "weights/tensor_binder.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kUnfinished = "quantize.unfinished.json";

/// A piece of the new checkpoint that is written as a whole: a module's tensors, or one tensor
/// copied.
struct Piece {
  std::string part;  // "" = copied
  const TensorInfo* copy = nullptr;
  StoredMatrix source;
  Storage target = Storage::kBF16;
  std::vector<PlannedTensor> tensors;
};

bool EndsWithAny(std::string_view text, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view e) { return text.ends_with(e); });
}

/// "experts", "dense" or "" for modules that are never touched.
std::string_view PartOf(std::string_view module) {
  const bool projection = EndsWithAny(module, {".gate_proj", ".up_proj", ".down_proj"});
  if (projection && module.find(".mlp.experts.") != std::string_view::npos) return "experts";
  if (projection) return "dense";
  if (module.find(".self_attn.indexer.") != std::string_view::npos) return "";
  return EndsWithAny(module, {".q_a_proj", ".q_b_proj", ".q_proj", ".k_proj", ".v_proj", ".o_proj",
                              ".kv_a_proj_with_mqa"})
             ? "dense"
             : "";
}

std::vector<PlannedTensor> TensorsOf(const std::string& module, Storage target, uint64_t rows,
                                     uint64_t cols) {
  switch (target) {
    case Storage::kNVFP4:
      return {{module + ".weight", Dtype::kU8, {rows, cols / 2}, rows * cols / 2},
              {module + ".weight_scale", Dtype::kF8E4M3, {rows, cols / 16}, rows * cols / 16},
              {module + ".weight_scale_2", Dtype::kF32, {}, 4}};
    case Storage::kMXFP4:
      return {{module + ".weight_packed", Dtype::kU8, {rows, cols / 2}, rows * cols / 2},
              {module + ".weight_scale", Dtype::kU8, {rows, cols / 32}, rows * cols / 32}};
    case Storage::kF8E4M3: {
      const uint64_t r = DivCeil(rows, 128), c = DivCeil(cols, 128);
      return {{module + ".weight", Dtype::kF8E4M3, {rows, cols}, rows * cols},
              {module + ".weight_scale_inv", Dtype::kF32, {r, c}, r * c * 4}};
    }
    case Storage::kInt8: {
      const uint64_t groups = DivCeil(cols, uint64_t{32});
      return {{module + ".weight", Dtype::kI8, {rows, cols}, rows * cols},
              {module + ".weight_scale", Dtype::kBF16, {rows, groups}, rows * groups * 2}};
    }
    default:
      return {{module + ".weight", Dtype::kBF16, {rows, cols}, rows * cols * 2}};
  }
}

constexpr std::string_view kSuffixes[] = {
    ".weight",           ".weight_packed",       ".weight_scale",       ".weight_scale_2",
    ".weight_scale_inv", ".weight_global_scale", ".input_global_scale", ".input_scale"};

class Quantizer {
 public:
  Quantizer(std::string from, std::string to, const QuantizeOptions& options, ThreadPool& pool)
      : from_(std::move(from)), to_(std::move(to)), o_(options), pool_(pool) {}

  Result<QuantizeReport> Run() {
    ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenDirectory(from_));
    RETURN_IF_ERROR(MakePieces(checkpoint));
    MakeShards();
    RETURN_IF_ERROR(Claim());
    OrderedJson map = OrderedJson::object();
    uint64_t total = 0;
    for (size_t s = 0; s < shards_.size(); ++s) {
      if (o_.progress) o_.progress(s, shards_.size());
      RETURN_IF_ERROR(WriteShard(s, map, total));
    }
    RETURN_IF_ERROR(CopyOtherFiles());
    RETURN_IF_ERROR(WriteTextFile(
        to_ + "/" + kIndex,
        OrderedJson{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(1)));
    std::error_code ec;
    fs::remove(to_ + "/" + kUnfinished, ec);
    report_.bytes_after = total;
    report_.shards = shards_.size();
    for (auto& [key, kind] : kinds_) {
      const auto& [error, square] = squares_[key];
      kind.rmse = square > 0.0 ? std::sqrt(error / square) : 0.0;
      report_.kinds.push_back(kind);
    }
    return report_;
  }

 private:
  Status MakePieces(const Checkpoint& checkpoint) {
    std::regex keep;
    try {
      keep = std::regex(o_.keep);
    } catch (const std::regex_error& e) {
      return MakeError(ErrorCode::kInvalidArgument, "--keep: '{}' is not a regular expression: {}",
                       o_.keep, e.what());
    }
    TensorBinder binder(checkpoint);
    std::map<std::string, bool, std::less<>> module_quantized;  // modules already decided
    for (const TensorInfo& t : checkpoint.tensors()) {
      report_.bytes_before += t.bytes;
      std::string module;
      for (const std::string_view suffix : kSuffixes) {
        if (t.name.ends_with(suffix)) module = t.name.substr(0, t.name.size() - suffix.size());
      }
      const std::string_view part = module.empty() ? "" : PartOf(module);
      const bool kept = part.empty() || (!o_.keep.empty() && std::regex_search(module, keep));
      if (!kept) {
        const auto it = module_quantized.find(module);
        if (it == module_quantized.end()) {
          ASSIGN_OR_RETURN(const bool quantized, AddModule(checkpoint, binder, module, part));
          module_quantized.emplace(module, quantized);
          if (quantized) continue;
        } else if (it->second) {
          continue;
        }
      }
      Piece piece;
      piece.copy = &t;
      piece.tensors = {{std::string(t.name), t.dtype, {t.shape, t.shape + t.ndim}, t.bytes}};
      pieces_.push_back(std::move(piece));
    }
    return binder.Finish();
  }

  /// False: it already is what it should become.
  Result<bool> AddModule(const Checkpoint& checkpoint, TensorBinder& binder,
                         const std::string& module, std::string_view part) {
    const TensorInfo* weight = checkpoint.Find(module + ".weight");
    if (weight == nullptr) weight = checkpoint.Find(module + ".weight_packed");
    if (weight == nullptr || weight->ndim != 2) return false;
    const uint64_t cols = weight->shape[1] * (weight->dtype == Dtype::kU8 ? 2 : 1);
    Piece piece;
    piece.part = part;
    piece.source = binder.Linear(module, weight->shape[0], cols);
    piece.target = part == "experts" ? o_.experts : o_.dense;
    if (piece.source.rows == 0 || piece.source.storage == piece.target) return false;
    const size_t block = piece.target == Storage::kNVFP4   ? 16
                         : piece.target == Storage::kMXFP4 ? 32
                                                           : 1;
    if (cols % block != 0) {
      return MakeError(ErrorCode::kUnsupported,
                       "{}: {} needs a multiple of {} inputs, got {}; leave it out with --keep",
                       module, StorageName(piece.target), block, cols);
    }
    piece.tensors = TensorsOf(module, piece.target, weight->shape[0], cols);
    pieces_.push_back(std::move(piece));
    return true;
  }

  void MakeShards() {
    uint64_t bytes = 0;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      uint64_t size = 0;
      for (const auto& t : pieces_[p].tensors) size += t.bytes;
      if (shards_.empty() || (bytes > 0 && bytes + size > o_.shard_bytes)) {
        shards_.emplace_back();
        bytes = 0;
      }
      shards_.back().push_back(p);
      bytes += size;
    }
  }

  std::string ShardName(size_t s) const {
    return fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards_.size());
  }

  /// What this run is: a resumed one must be the same.
  std::string Manifest() const {
    uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a over every planned tensor
    for (const auto& piece : pieces_) {
      for (const auto& t : piece.tensors) {
        for (const char c : fmt::format("{} {} {} {};", t.name, DtypeName(t.dtype), t.bytes,
                                        StorageName(piece.source.storage))) {
          hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
        }
      }
    }
    return OrderedJson{{"source", fs::weakly_canonical(from_).string()},
                       {"plan", fmt::format("{:016x}", hash)},
                       {"shards", shards_.size()}}
        .dump(1);
  }

  Status Claim() {
    std::error_code ec;
    fs::create_directories(to_, ec);
    if (ec)
      return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be made: {}", to_, ec.message());
    const std::string unfinished = to_ + "/" + kUnfinished, manifest = Manifest();
    if (fs::exists(unfinished, ec)) {
      ASSIGN_OR_RETURN(const std::string old, ReadTextFile(unfinished));
      if (old == manifest) return {};
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}: holds an unfinished run of another model or other settings; remove it",
                       to_);
    }
    if (!fs::is_empty(to_, ec)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}: wanted a new or empty directory, got one with files in it", to_);
    }
    return WriteTextFile(unfinished, manifest);
  }

  Status WriteShard(size_t s, OrderedJson& map, uint64_t& total) {
    std::vector<PlannedTensor> tensors;
    for (const size_t p : shards_[s])
      tensors.insert(tensors.end(), pieces_[p].tensors.begin(), pieces_[p].tensors.end());
    for (const auto& t : tensors) {
      map[t.name] = ShardName(s);
      total += t.bytes;
    }
    const std::string path = to_ + "/" + ShardName(s);
    std::error_code ec;
    if (fs::exists(path, ec) && fs::file_size(path, ec) == SafetensorsFileBytes(tensors)) {
      ++report_.shards_kept;
      return {};
    }
    return WriteSafetensors(path, tensors, [&](const ByteSink& sink) -> Status {
      for (const size_t p : shards_[s]) RETURN_IF_ERROR(WritePiece(pieces_[p], sink));
      return {};
    });
  }

  Status WritePiece(const Piece& piece, const ByteSink& sink) {
    if (piece.copy != nullptr) return sink({piece.copy->data, piece.copy->bytes});
    ASSIGN_OR_RETURN(const EncodedMatrix encoded, EncodeMatrix(piece.source, piece.target, pool_));
    RETURN_IF_ERROR(sink(encoded.matrix.data));
    RETURN_IF_ERROR(sink(encoded.matrix.scales));
    if (piece.target == Storage::kNVFP4) {
      RETURN_IF_ERROR(sink(std::as_bytes(std::span(&encoded.matrix.view.global_scale, 1))));
    }
    const std::string from(StorageName(piece.source.storage)), to(StorageName(piece.target));
    const std::string key = piece.part + from + to;
    QuantizeKind& kind = kinds_[key];
    kind.part = piece.part;
    kind.from = from;
    kind.to = to;
    ++kind.tensors;
    kind.bytes_before += piece.source.TotalBytes();
    for (const auto& t : piece.tensors) kind.bytes_after += t.bytes;
    squares_[key].first += encoded.squared_error;
    squares_[key].second += encoded.squared_source;
    return {};
  }

  /// Tokenizer, config and the like. What config.json says of the old quantisation is dropped: the
  /// tensors decide.
  Status CopyOtherFiles() {
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(from_, ec)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file() || name.ends_with(".safetensors") || name == kIndex ||
          name == "hf_quant_config.json")
        continue;
      if (name == "config.json") {
        ASSIGN_OR_RETURN(const std::string text, ReadTextFile(entry.path().string()));
        OrderedJson config = OrderedJson::parse(text, nullptr, false);
        if (!config.is_object())
          return MakeError(ErrorCode::kCorrupt, "{}: not a JSON object", entry.path().string());
        config.erase("quantization_config");
        RETURN_IF_ERROR(WriteTextFile(to_ + "/config.json", config.dump(1)));
        continue;
      }
      fs::copy_file(entry.path(), fs::path(to_) / name, fs::copy_options::overwrite_existing, ec);
      if (ec)
        return MakeError(ErrorCode::kInvalidArgument, "{}: cannot be copied to {}: {}", name, to_,
                         ec.message());
    }
    return {};
  }

  const std::string from_, to_;
  const QuantizeOptions& o_;
  ThreadPool& pool_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<size_t>> shards_;  // indices into pieces_
  QuantizeReport report_;
  std::map<std::string, QuantizeKind> kinds_;
  std::map<std::string, std::pair<double, double>> squares_;
};

}  // namespace

Result<QuantizeReport> QuantizeCheckpoint(const std::string& from, const std::string& to,
                                          const QuantizeOptions& options, ThreadPool& pool) {
  return Quantizer(from, to, options, pool).Run();
}

}  // namespace carpool
