#include "weights/tensor_binder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/aligned.h"
#include "base/printable.h"
#include "quant/panel_kernels.h"

namespace carpool {
namespace {

constexpr size_t kListedProblems = 20;

bool IsFloat(Dtype d) { return d == Dtype::kF32 || d == Dtype::kBF16 || d == Dtype::kF16; }

Storage FloatStorage(Dtype d) {
  return d == Dtype::kF32 ? Storage::kF32 : d == Dtype::kBF16 ? Storage::kBF16 : Storage::kF16;
}

bool HasShape(const TensorInfo& t, std::initializer_list<uint64_t> shape) {
  return t.ndim == shape.size() && std::equal(shape.begin(), shape.end(), t.shape);
}
bool IsScalar(const TensorInfo& t) {
  return std::all_of(t.shape, t.shape + t.ndim, [](uint64_t d) { return d == 1; });
}

template <typename T>
T LoadAt(const TensorInfo& t, size_t i) {
  T value;
  std::memcpy(&value, t.data + i * sizeof(T), sizeof(T));
  return value;
}
float FloatAt(const TensorInfo& t, size_t i) {
  if (t.dtype == Dtype::kF32) return LoadAt<float>(t, i);
  return t.dtype == Dtype::kBF16 ? BF16ToFloat(LoadAt<uint16_t>(t, i))
                                 : F16ToFloat(LoadAt<uint16_t>(t, i));
}

std::string Describe(const TensorInfo& t) {
  const bool blocks = t.dtype == Dtype::kGgufBlocks;
  return fmt::format("{} {}", blocks ? StorageName(t.blocks) : DtypeName(t.dtype), ShapeText(t));
}

Error Mismatch(const TensorInfo& tensor, std::string wanted) {
  return MakeError(ErrorCode::kCorrupt, "{}: wanted {}, got {}", Printable(tensor.name), wanted,
                   Describe(tensor));
}

/// The block size along one dimension that gives `blocks` scales for `n` elements: 128 where it
/// fits (what everybody uses), else a power of two. 0 when nothing fits.
size_t BlockSize(size_t n, uint64_t blocks) {
  if (DivCeil(n, 128) == blocks) return 128;
  for (size_t size = 1; size <= 4096; size *= 2) {
    if (DivCeil(n, size) == blocks) return size;
  }
  return blocks == 1 ? n : 0;
}

}  // namespace

struct TensorBinder::Siblings {
  std::string module;
  const TensorInfo* weight = nullptr;
  const TensorInfo* packed = nullptr;
  const TensorInfo* scale = nullptr;
  const TensorInfo* scale_inv = nullptr;
  const TensorInfo* scale_2 = nullptr;
  const TensorInfo* global_scale = nullptr;
  const TensorInfo* shape = nullptr;  // of int4: what the config says already
  const TensorInfo* pre_quant_scale = nullptr;
  const TensorInfo* zero_point = nullptr;
  const TensorInfo* input_scale =
      nullptr;  // of activations; not used, weights alone are quantised here
  const TensorInfo* input_global_scale = nullptr;

  bool empty() const { return weight == nullptr && packed == nullptr; }
  /// The module's matrix over the bytes of `from`; scales are for the caller to add.
  StoredMatrix Matrix(const TensorInfo& from, Storage storage, size_t rows, size_t cols) const {
    StoredMatrix m;
    m.name = module;
    m.storage = storage;
    m.rows = rows;
    m.cols = cols;
    m.data = from.data;
    m.data_bytes = from.bytes;
    return m;
  }
};

TensorBinder::Siblings TensorBinder::FindSiblings(std::string_view module) const {
  static constexpr std::pair<std::string_view, const TensorInfo * Siblings::*> kKinds[] = {
      {"weight", &Siblings::weight},
      {"weight_packed", &Siblings::packed},
      {"weight_scale", &Siblings::scale},
      {"weight_scale_inv", &Siblings::scale_inv},
      {"weight_scale_2", &Siblings::scale_2},
      {"weight_global_scale", &Siblings::global_scale},
      {"weight_shape", &Siblings::shape},
      {"pre_quant_scale", &Siblings::pre_quant_scale},
      {"weight_zero_point", &Siblings::zero_point},
      {"input_scale", &Siblings::input_scale},
      {"input_global_scale", &Siblings::input_global_scale},
  };
  Siblings found;
  found.module = module;
  const std::string prefix = found.module + ".";
  for (const TensorInfo& tensor : checkpoint_.WithPrefix(prefix)) {
    const std::string_view kind = tensor.name.substr(prefix.size());
    for (const auto& [name, member] : kKinds) {
      if (name == kind) found.*member = &tensor;
    }
  }
  return found;
}

TensorBinder::Resolved TensorBinder::ResolveFp4(const Siblings& s, size_t rows, size_t cols) const {
  const TensorInfo& codes = s.packed != nullptr ? *s.packed : *s.weight;
  const bool mx = s.packed != nullptr && s.scale != nullptr && s.scale->dtype != Dtype::kF8E4M3;
  StoredMatrix m = s.Matrix(codes, mx ? Storage::kMXFP4 : Storage::kNVFP4, rows, cols);
  const size_t block = mx ? 32 : 16;
  if (s.pre_quant_scale != nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: AWQ weights (pre_quant_scale) are not supported; wanted plain NVFP4",
                     Printable(s.module));
  }
  if (codes.dtype == Dtype::kI32) return ResolveInt4(s, rows, cols);
  if (cols % block != 0) {
    return MakeError(ErrorCode::kUnsupported, "{}: {} needs a multiple of {} inputs, got {}",
                     Printable(s.module), StorageName(m.storage), block, cols);
  }
  if (codes.dtype != Dtype::kU8 || !HasShape(codes, {rows, cols / 2})) {
    return Mismatch(codes, fmt::format("U8 [{}, {}] ({} [{}, {}])", rows, cols / 2,
                                       StorageName(m.storage), rows, cols));
  }
  if (s.scale == nullptr) {
    return MakeError(ErrorCode::kCorrupt, "{}.weight_scale: missing, but the weight is packed U8",
                     Printable(s.module));
  }
  const bool scale_dtype = mx ? s.scale->dtype == Dtype::kU8 || s.scale->dtype == Dtype::kF8E8M0
                              : s.scale->dtype == Dtype::kF8E4M3;
  if (!scale_dtype || !HasShape(*s.scale, {rows, cols / block})) {
    return Mismatch(*s.scale,
                    fmt::format("{} [{}, {}]", mx ? "U8 (e8m0)" : "F8_E4M3", rows, cols / block));
  }
  if (!mx) {
    const bool inverse = s.packed != nullptr;
    const TensorInfo* global = inverse ? s.global_scale : s.scale_2;
    if (global == nullptr) {
      return MakeError(ErrorCode::kCorrupt, "{}.{}: missing, but the weight is NVFP4",
                       Printable(s.module), inverse ? "weight_global_scale" : "weight_scale_2");
    }
    if (global->dtype != Dtype::kF32 || !IsScalar(*global)) return Mismatch(*global, "one F32");
    const float value = LoadAt<float>(*global, 0);
    m.global_scale = inverse ? 1.0f / value : value;
    // 0 is what an all-zero weight gives in ModelOpt; its inverse cannot be written.
    if (!std::isfinite(m.global_scale) || !std::isfinite(value) || std::signbit(value)) {
      return MakeError(ErrorCode::kCorrupt, "{}: is {}, wanted a finite number above 0",
                       Printable(global->name), value);
    }
  }
  m.scales = s.scale->data;
  return m;
}

/// compressed-tensors "pack-quantized", symmetric: eight codes per word, the first input lowest.
TensorBinder::Resolved TensorBinder::ResolveInt4(const Siblings& s, size_t rows,
                                                 size_t cols) const {
  if (cols % 8 != 0 || !HasShape(*s.packed, {rows, cols / 8})) {
    return Mismatch(*s.packed,
                    fmt::format("I32 [{}, {}] (int4 [{}, {}])", rows, cols / 8, rows, cols));
  }
  if (s.zero_point != nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: int4 weights with zero points are not supported; wanted symmetric ones",
                     Printable(s.module));
  }
  if (s.scale == nullptr) {
    return MakeError(ErrorCode::kCorrupt, "{}.weight_scale: missing, but the weight is packed I32",
                     Printable(s.module));
  }
  const bool grouped = IsFloat(s.scale->dtype) && s.scale->ndim == 2 && s.scale->shape[0] == rows &&
                       s.scale->shape[1] > 0 && cols % s.scale->shape[1] == 0;
  if (!grouped) {
    return Mismatch(*s.scale, fmt::format("one float per row and group of inputs, e.g. [{}, {}]",
                                          rows, DivCeil(cols, 32)));
  }
  StoredMatrix m = s.Matrix(*s.packed, Storage::kInt4, rows, cols);
  m.scales = s.scale->data;
  m.scale_storage = FloatStorage(s.scale->dtype);
  m.scale_block_cols = cols / s.scale->shape[1];
  return m;
}

TensorBinder::Resolved TensorBinder::ResolveFp8(const Siblings& s, size_t rows, size_t cols) const {
  StoredMatrix m = s.Matrix(*s.weight, Storage::kF8E4M3, rows, cols);
  // Both are factors, despite the name of the first.
  const TensorInfo* scale = s.scale_inv != nullptr ? s.scale_inv : s.scale;
  if (scale == nullptr) return m;
  if (scale->dtype != Dtype::kF32 && scale->dtype != Dtype::kBF16)
    return Mismatch(*scale, "F32 or BF16 scales");
  m.scales = scale->data;
  m.scale_storage = FloatStorage(scale->dtype);
  if (IsScalar(*scale)) {
    m.scale_block_rows = rows;
    m.scale_block_cols = cols;
  } else if (HasShape(*scale, {rows}) || HasShape(*scale, {rows, 1})) {
    m.scale_block_rows = 1;
    m.scale_block_cols = cols;
  } else if (scale->ndim == 2) {
    m.scale_block_rows = BlockSize(rows, scale->shape[0]);
    m.scale_block_cols = BlockSize(cols, scale->shape[1]);
  }
  if (m.scale_block_rows == 0 || m.scale_block_cols == 0) {
    return Mismatch(
        *scale, fmt::format("one scale, one per row ([{}, 1]) or one per block ([{}, {}])", rows,
                            DivCeil(rows, 128), DivCeil(cols, 128)));
  }
  return m;
}

/// compressed-tensors' "int-quantized" weights: I8 [rows, cols] with symmetric scales of a group, a
/// row or the tensor.
TensorBinder::Resolved TensorBinder::ResolveInt8(const Siblings& s, size_t rows,
                                                 size_t cols) const {
  StoredMatrix m = s.Matrix(*s.weight, Storage::kInt8, rows, cols);
  if (s.scale == nullptr) {
    return MakeError(ErrorCode::kCorrupt, "{}.weight_scale: missing, but the weight is I8",
                     Printable(s.module));
  }
  if (s.zero_point != nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "{}: int8 weights with zero points are not supported; wanted symmetric ones",
                     Printable(s.module));
  }
  const TensorInfo& scale = *s.scale;
  if (scale.dtype != Dtype::kF32 && scale.dtype != Dtype::kBF16)
    return Mismatch(scale, "F32 or BF16 scales");
  m.scales = scale.data;
  m.scale_storage = FloatStorage(scale.dtype);
  m.scale_block_rows = 1;
  m.scale_block_cols = std::max(cols, kBlockInputs);
  if (IsScalar(scale)) {
    m.scale_block_rows = rows;
  } else if (scale.ndim == 2 && scale.shape[0] == rows && scale.shape[1] > 1) {
    // Groups are multiples of 16 everywhere; the last one may be short.
    const uint64_t groups = scale.shape[1];
    m.scale_block_cols = RoundUp(DivCeil(cols, static_cast<size_t>(groups)), size_t{16});
    if (DivCeil(cols, m.scale_block_cols) != groups) m.scale_block_cols = 0;
  } else if (!HasShape(scale, {rows}) && !HasShape(scale, {rows, 1})) {
    m.scale_block_cols = 0;
  }
  if (m.scale_block_cols == 0) {
    return Mismatch(scale, fmt::format("one scale, one per row ([{}, 1]) or one per group ([{}, "
                                       "groups])",
                                       rows, rows));
  }
  return m;
}

TensorBinder::Resolved TensorBinder::Resolve(const Siblings& s, size_t rows, size_t cols) const {
  const bool packed_u8 = s.weight != nullptr && s.weight->dtype == Dtype::kU8;
  if (packed_u8 || s.packed != nullptr) return ResolveFp4(s, rows, cols);
  if (!HasShape(*s.weight, {rows, cols}))
    return Mismatch(*s.weight, fmt::format("shape [{}, {}]", rows, cols));
  if (s.weight->dtype == Dtype::kI8) return ResolveInt8(s, rows, cols);
  if (s.weight->dtype == Dtype::kF8E4M3) return ResolveFp8(s, rows, cols);
  const bool blocks = s.weight->dtype == Dtype::kGgufBlocks;
  if (!blocks && !IsFloat(s.weight->dtype))
    return Mismatch(*s.weight, "F32, BF16, F16, F8_E4M3, I8 or packed U8");
  StoredMatrix m =
      s.Matrix(*s.weight, blocks ? s.weight->blocks : FloatStorage(s.weight->dtype), rows, cols);
  if (blocks && s.scale_2 != nullptr) {
    if (s.scale_2->dtype != Dtype::kF32 || !IsScalar(*s.scale_2))
      return Mismatch(*s.scale_2, "one F32 number");
    m.global_scale = LoadAt<float>(*s.scale_2, 0);
  }
  return m;
}

std::optional<StoredMatrix> TensorBinder::Bind(std::string_view module, size_t rows, size_t cols) {
  const Siblings s = FindSiblings(module);
  if (s.empty()) return std::nullopt;
  Resolved resolved = Resolve(s, rows, cols);
  const TensorInfo* weight = s.packed != nullptr ? s.packed : s.weight;
  const bool first = !used_[static_cast<size_t>(weight - checkpoint_.tensors().data())];
  for (const TensorInfo* t :
       {s.weight, s.packed, s.scale, s.scale_inv, s.scale_2, s.global_scale, s.shape,
        s.pre_quant_scale, s.zero_point, s.input_scale, s.input_global_scale}) {
    Use(t);
  }
  if (!resolved) {
    Problem(module, resolved.error().message);
    return StoredMatrix{};
  }
  if (first) {  // tied weights are bound twice
    Count(StorageName(resolved->storage), resolved->TotalBytes(), rows * cols);
    CompareWithConfig(module, *resolved);
  }
  return std::move(*resolved);
}

StoredMatrix TensorBinder::Linear(std::string_view module, size_t rows, size_t cols) {
  if (auto bound = Bind(module, rows, cols)) return *std::move(bound);
  Problem(module,
          fmt::format("{}.weight: missing, wanted shape [{}, {}]", Printable(module), rows, cols));
  return {};
}

StoredMatrix TensorBinder::OptionalLinear(std::string_view module, size_t rows, size_t cols) {
  return Bind(module, rows, cols).value_or(StoredMatrix{});
}

StoredMatrix TensorBinder::Slice(std::string_view name, const ExpertSlice& slice) {
  const TensorInfo* t = checkpoint_.Find(name);
  if (t == nullptr) {
    const TensorInfo* blocks = checkpoint_.Find(std::string(name) + "_blocks");
    if (blocks != nullptr) return Mxfp4Slice(*blocks, slice);
  }
  const uint64_t n = slice.num_experts, d1 = slice.transposed ? slice.cols : slice.fused_rows,
                 d2 = slice.transposed ? slice.fused_rows : slice.cols;
  const auto wanted = fmt::format("[{}, {}, {}]", n, d1, d2);
  if (t == nullptr) {
    Problem(name, fmt::format("{}: missing, wanted shape {}", Printable(name), wanted));
    return {};
  }
  Use(t);
  if (!IsFloat(t->dtype) || !HasShape(*t, {n, d1, d2})) {
    Problem(name, Mismatch(*t, "F32, BF16 or F16 " + wanted).message);
    return {};
  }
  StoredMatrix m;
  m.name = fmt::format("{}[{}]", name, slice.expert);
  m.storage = FloatStorage(t->dtype);
  m.rows = slice.rows;
  m.cols = slice.cols;
  const size_t width = DtypeBytes(t->dtype);
  m.row_stride = slice.row_step * (slice.transposed ? 1 : slice.cols);
  m.col_stride = slice.transposed ? slice.fused_rows : 1;
  m.data = t->data + (slice.expert * slice.fused_rows * slice.cols +
                      slice.row_begin * (slice.transposed ? 1 : slice.cols)) *
                         width;
  m.data_bytes = slice.rows * slice.cols * width;
  Count(StorageName(m.storage), m.data_bytes, m.rows * m.cols);
  return m;
}

StoredMatrix TensorBinder::Mxfp4Slice(const TensorInfo& blocks, const ExpertSlice& slice) {
  const std::string name(blocks.name.substr(0, blocks.name.size() - sizeof("blocks")));
  const TensorInfo* scales = checkpoint_.Find(name + "_scales");
  Use(&blocks);
  Use(scales);
  const uint64_t n = slice.num_experts, rows = slice.fused_rows, groups = slice.cols / 32;
  if (slice.cols % 32 != 0 || blocks.dtype != Dtype::kU8 ||
      !HasShape(blocks, {n, rows, groups, 16})) {
    Problem(name, Mismatch(blocks, fmt::format("U8 [{}, {}, {}, 16]", n, rows, groups)).message);
    return {};
  }
  if (scales == nullptr) {
    Problem(name, fmt::format("{}_scales: missing, wanted shape [{}, {}, {}]", Printable(name), n,
                              rows, groups));
    return {};
  }
  if ((scales->dtype != Dtype::kU8 && scales->dtype != Dtype::kF8E8M0) ||
      !HasShape(*scales, {n, rows, groups})) {
    Problem(name, Mismatch(*scales, fmt::format("U8 [{}, {}, {}]", n, rows, groups)).message);
    return {};
  }
  StoredMatrix m;
  m.name = fmt::format("{}[{}]", name, slice.expert);
  m.storage = Storage::kMXFP4;
  m.rows = slice.rows;
  m.cols = slice.cols;
  m.row_stride = slice.row_step * slice.cols;
  const size_t first = slice.expert * slice.fused_rows + slice.row_begin;
  m.data = blocks.data + first * slice.cols / 2;
  m.scales = scales->data + first * groups;
  m.data_bytes = slice.rows * slice.cols / 2;
  Count(StorageName(m.storage), m.TotalBytes(), m.rows * m.cols);
  return m;
}

std::vector<float> TensorBinder::Floats(std::string_view name,
                                        std::initializer_list<uint64_t> shape) {
  const TensorInfo* t = checkpoint_.Find(name);
  const std::string wanted = fmt::format("[{}]", fmt::join(shape, ", "));
  if (t == nullptr) {
    Problem(name, fmt::format("{}: missing, wanted shape {}", Printable(name), wanted));
    return {};
  }
  Use(t);
  if (!IsFloat(t->dtype) || !HasShape(*t, shape)) {
    Problem(name, Mismatch(*t, "F32, BF16 or F16 " + wanted).message);
    return {};
  }
  std::vector<float> out(t->bytes / DtypeBytes(t->dtype));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = FloatAt(*t, i);
    if (std::isfinite(out[i])) continue;
    Problem(name, fmt::format("{}: element {} is {}, wanted a finite number", Printable(name), i,
                              out[i]));
    return {};
  }
  Count(StorageName(FloatStorage(t->dtype)), t->bytes, out.size());
  return out;
}

std::vector<float> TensorBinder::OptionalVector(std::string_view name, size_t n) {
  return Has(name) ? Vector(name, n) : std::vector<float>();
}

bool TensorBinder::HasPrefix(std::string_view prefix) const {
  return !checkpoint_.WithPrefix(prefix).empty();
}

void TensorBinder::IgnorePrefix(std::string_view prefix) {
  for (const TensorInfo& tensor : checkpoint_.WithPrefix(prefix))
    used_[static_cast<size_t>(&tensor - checkpoint_.tensors().data())] = true;
}

void TensorBinder::NoteMissingOptional(std::string what) {
  report_.missing_optional.push_back(std::move(what));
}

void TensorBinder::Use(const TensorInfo* tensor) {
  if (tensor == nullptr) return;
  auto used = used_[static_cast<size_t>(tensor - checkpoint_.tensors().data())];
  if (!used) ++report_.tensors_bound;
  used = true;
}

void TensorBinder::Count(std::string_view storage, size_t bytes, size_t parameters) {
  report_.tensor_bytes[std::string(storage)] += bytes;
  ++report_.tensor_counts[std::string(storage)];
  report_.parameters += parameters;
}

void TensorBinder::CompareWithConfig(std::string_view module, const StoredMatrix& matrix) {
  if (!config_.present() || module.ends_with("embed_tokens")) return;
  // One expert speaks for its mates: patterns tell layers and kinds apart, and there may be 60,000
  // experts.
  if (const auto at = module.find(".experts.");
      at != module.npos && !module.substr(at).starts_with(".experts.0.")) {
    return;
  }
  const bool packed = matrix.storage != Storage::kF32 && matrix.storage != Storage::kBF16 &&
                      matrix.storage != Storage::kF16;
  const bool said = config_.SaysQuantized(module);
  if (packed == said) return;
  size_t& count = packed ? packed_though_excluded_ : float_though_quantized_;
  std::string& example = packed ? packed_example_ : float_example_;
  if (count++ == 0)
    example = fmt::format("{} ({})", Printable(module), StorageName(matrix.storage));
}

void TensorBinder::Problem(std::string_view name, std::string text) {
  ++num_problems_;
  problems_.emplace(name, std::move(text));
  if (problems_.size() > kListedProblems) problems_.erase(std::prev(problems_.end()));
}

Status TensorBinder::Finish() {
  if (num_problems_ > 0) {
    std::string list;
    for (const auto& [name, text] : problems_)
      list += fmt::format("{}{}", list.empty() ? "" : "; ", text);
    if (num_problems_ > problems_.size())
      list += fmt::format("; and {} more", num_problems_ - problems_.size());
    return MakeError(ErrorCode::kCorrupt, "{} tensor{} cannot be loaded: {}", num_problems_,
                     num_problems_ == 1 ? "" : "s", list);
  }
  const auto& all = checkpoint_.tensors();
  for (size_t i = 0; i < all.size(); ++i) {
    const bool leftover = all[i].name.ends_with(".rotary_emb.inv_freq") ||
                          all[i].name.ends_with(".k_scale") || all[i].name.ends_with(".v_scale");
    if (!used_[i] && !leftover) report_.unused.emplace_back(all[i].name);
  }
  if (packed_though_excluded_ > 0) {
    report_.warnings.push_back(fmt::format(
        "the quantisation config excludes {} module{} whose tensors are quantised, e.g. {}",
        packed_though_excluded_, packed_though_excluded_ == 1 ? "" : "s", packed_example_));
  }
  if (float_though_quantized_ > 0) {
    report_.warnings.push_back(fmt::format(
        "the quantisation config promises {} quantised module{} whose tensors are floats, e.g. {}",
        float_though_quantized_, float_though_quantized_ == 1 ? "" : "s", float_example_));
  }
  return {};
}

}  // namespace carpool
