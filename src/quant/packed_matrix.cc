#include "quant/packed_matrix.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/aligned.h"
#include "base/check.h"
#include "quant/pack_panel.h"

namespace carpool {
namespace {

constexpr std::array<std::string_view, kNumWeightFormats> kNames = {"f32",   "bf16",  "fp8", "q8",
                                                                    "nvfp4", "mxfp4", "q4",  "q6"};

constexpr size_t kHeaderBytes = 64;

bool HasHeader(WeightFormat f) { return f != WeightFormat::kF32 && f != WeightFormat::kBF16; }

size_t BlockBytes(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32:
      return 2048;
    case WeightFormat::kBF16:
      return 1024;
    case WeightFormat::kFP8:
    case WeightFormat::kQ8:
      return 512;
    case WeightFormat::kNVFP4:
    case WeightFormat::kMXFP4:
    case WeightFormat::kQ4:
      return 256;
    case WeightFormat::kQ6:
      return 384;
  }
  return 0;
}

/// 32-blocks per header: as many as a 64-byte header has scales for; FP8: as many as share one
/// scale, up to four.
size_t SuperBlocks(WeightFormat f, const StoredMatrix& m) {
  switch (f) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kQ4:
    case WeightFormat::kQ6:
      return 1;
    case WeightFormat::kQ8:
    case WeightFormat::kNVFP4:
      return 2;
    case WeightFormat::kMXFP4:
      return 4;
    case WeightFormat::kFP8: {
      const bool whole_row = m.scales == nullptr || m.scale_block_cols >= m.cols;
      return whole_row || m.scale_block_cols % 128 == 0 ? 4 : m.scale_block_cols % 64 == 0 ? 2 : 1;
    }
  }
  return 1;
}

size_t PanelBytes(WeightFormat f, size_t blocks, size_t super_blocks) {
  const size_t headers = HasHeader(f) ? DivCeil(blocks, super_blocks) * kHeaderBytes : 0;
  return RoundUp(headers + blocks * BlockBytes(f), kCacheLineBytes);
}

}  // namespace

std::string_view WeightFormatName(WeightFormat format) {
  return kNames[static_cast<size_t>(format)];
}

Result<WeightFormat> ParseWeightFormat(std::string_view name) {
  const auto* it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end()) {
    return MakeError(ErrorCode::kInvalidArgument, "unknown weight format '{}'; known: {}", name,
                     fmt::join(kNames, ", "));
  }
  return static_cast<WeightFormat>(it - kNames.begin());
}

WeightFormat PackedMatrix::NaturalFormat(const StoredMatrix& m) {
  // THE TABLE: which panel holds what a file stores. Float storages and the fp4 and fp8 ones keep
  // every weight's value (F16 as F32). Q4_0, Q4_1, Q4_K and Q6_K keep their codes; their scales, in
  // the K types products of two numbers, are rounded to f16. The other integer blocks of GGUF
  // become int8 with a scale per 32 inputs.
  switch (m.storage) {
    case Storage::kBF16:
      return WeightFormat::kBF16;
    case Storage::kNVFP4:
    case Storage::kGgufNVFP4:
      return WeightFormat::kNVFP4;
    case Storage::kMXFP4:
    case Storage::kGgufMXFP4:
      return WeightFormat::kMXFP4;
    case Storage::kF8E4M3: {
      const bool whole_row = m.scales == nullptr || m.scale_block_cols >= m.cols;
      return whole_row || m.scale_block_cols % kBlockInputs == 0 ? WeightFormat::kFP8
                                                                 : WeightFormat::kF32;
    }
    case Storage::kInt8:
      return WeightFormat::kQ8;
    case Storage::kInt4:
      return m.scale_block_cols % kBlockInputs == 0 ? WeightFormat::kQ4 : WeightFormat::kF32;
    case Storage::kF32:
    case Storage::kF16:
      return WeightFormat::kF32;
    case Storage::kQ4_0:
    case Storage::kQ4_1:
    case Storage::kQ4_K:
      return WeightFormat::kQ4;
    case Storage::kQ6_K:
      return WeightFormat::kQ6;
    case Storage::kQ5_0:
    case Storage::kQ5_1:
    case Storage::kQ8_0:
    case Storage::kQ2_K:
    case Storage::kQ3_K:
    case Storage::kQ5_K:
    case Storage::kIQ4_NL:
    case Storage::kIQ4_XS:
      return WeightFormat::kQ8;
  }
  return WeightFormat::kF32;
}

PackedMatrix::PackedMatrix(WeightFormat format, const StoredMatrix& source)
    : format_(format),
      rows_(source.rows),
      cols_(source.cols),
      super_blocks_(SuperBlocks(format, source)) {
  panel_bytes_ = PanelBytes(format, blocks(), super_blocks_);
  // Formats whose scales are codes or f16 keep the tensor's factor apart; elsewhere it is folded
  // into scales or values.
  if (format == WeightFormat::kNVFP4 || format == WeightFormat::kMXFP4 ||
      format == WeightFormat::kQ4 || format == WeightFormat::kQ6)
    global_scale_ = source.global_scale;
}

size_t PackedMatrix::PackedBytes(const StoredMatrix& source, std::optional<WeightFormat> format) {
  return PackedMatrix(format.value_or(NaturalFormat(source)), source).bytes();
}

Result<PackedMatrix> PackedMatrix::Plan(const StoredMatrix& source,
                                        std::optional<WeightFormat> format) {
  const WeightFormat natural = NaturalFormat(source), chosen = format.value_or(natural);
  const bool from_any =
      chosen == WeightFormat::kF32 || chosen == WeightFormat::kBF16 || chosen == WeightFormat::kQ8;
  if (!from_any && chosen != natural) {
    return MakeError(
        ErrorCode::kUnsupported,
        "{}: stored as {}, cannot be repacked as {} at load; known: f32, bf16, q8; use "
        "`carpool quantize` for the others",
        source.name, StorageName(source.storage), WeightFormatName(chosen));
  }
  return PackedMatrix(chosen, source);
}

Status PackedMatrix::Fill(const StoredMatrix& source, std::byte* memory, ThreadPool* pool) {
  RETURN_IF_ERROR(ValidateForPacking(source));
  panels_ = memory;
  std::mutex mutex;
  Status status;
  const auto pack = [&](size_t panel, size_t) {
    Status one = PackPanel(source, format_, panel, super_blocks_, memory + panel * panel_bytes_);
    if (one) return;
    const std::lock_guard lock(mutex);
    status = std::move(one);
  };
  if (pool != nullptr) {
    pool->ParallelFor(num_panels(), pack);
  } else {
    for (size_t panel = 0; panel < num_panels(); ++panel) pack(panel, 0);
  }
  return status;
}

Result<PackedMatrix> PackedMatrix::Pack(const StoredMatrix& source, ThreadPool* pool) {
  return Pack(source, NaturalFormat(source), pool);
}

Result<PackedMatrix> PackedMatrix::Pack(const StoredMatrix& source, WeightFormat format,
                                        ThreadPool* pool) {
  ASSIGN_OR_RETURN(PackedMatrix packed, Plan(source, format));
  packed.storage_ = PageBuffer(packed.bytes());
  RETURN_IF_ERROR(packed.Fill(source, packed.storage_.data(), pool));
  return packed;
}

Result<PackedMatrix> PackedMatrix::PackInto(const StoredMatrix& source, std::byte* memory,
                                            std::optional<WeightFormat> format, ThreadPool* pool) {
  ASSIGN_OR_RETURN(PackedMatrix packed, Plan(source, format));
  RETURN_IF_ERROR(packed.Fill(source, memory, pool));
  return packed;
}

Result<PackedMatrix> PackedMatrix::FromPacked(const StoredMatrix& source, const std::byte* memory,
                                              std::optional<WeightFormat> format) {
  ASSIGN_OR_RETURN(PackedMatrix packed, Plan(source, format));
  packed.panels_ = memory;
  return packed;
}

PackedMatrix PackedMatrix::FromFloats(const float* values, size_t rows, size_t cols,
                                      WeightFormat format) {
  CARPOOL_CHECK(format == WeightFormat::kF32 || format == WeightFormat::kBF16 ||
                format == WeightFormat::kQ8);
  StoredMatrix source;
  source.storage = Storage::kF32;
  source.rows = rows;
  source.cols = cols;
  source.data = reinterpret_cast<const std::byte*>(values);
  source.data_bytes = rows * cols * sizeof(float);
  auto packed = Pack(source, format);
  CARPOOL_CHECK(packed.has_value());
  return std::move(packed).value();
}

bool PackedMatrix::UsesQ8(Activations activations) const {
  return activations == Activations::kQ8 &&
         (format_ == WeightFormat::kQ8 || format_ == WeightFormat::kNVFP4 ||
          format_ == WeightFormat::kMXFP4 || format_ == WeightFormat::kQ4 ||
          format_ == WeightFormat::kQ6);
}

PanelCall PackedMatrix::Call(size_t first, size_t count, bool q8) const {
  PanelCall call{};
  call.panels = panels_ + first * panel_bytes_;
  call.num_panels = count;
  call.panel_bytes = panel_bytes_;
  call.blocks = blocks();
  call.super_blocks = super_blocks_;
  // The int8 kernels read 4-bit codes as twice their value.
  const bool doubled = format_ == WeightFormat::kNVFP4 || format_ == WeightFormat::kMXFP4;
  call.out_scale = q8 && doubled ? global_scale_ * 0.5f : global_scale_;
  return call;
}

}  // namespace carpool
