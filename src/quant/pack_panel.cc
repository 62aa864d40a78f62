#include "quant/pack_panel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/aligned.h"
#include "quant/gguf_blocks.h"

namespace carpool {
namespace {

constexpr size_t kHeaderBytes = 64;

/// Where block b of a panel lies: its superblock's header, its index in it, its codes.
struct BlockPlace {
  std::byte* header;
  size_t index;
  std::byte* codes;
};
BlockPlace Place(std::byte* panel, size_t b, size_t super_blocks, size_t block_bytes) {
  const size_t super = b / super_blocks, index = b % super_blocks;
  std::byte* header = panel + super * (kHeaderBytes + super_blocks * block_bytes);
  return {header, index, header + kHeaderBytes + index * block_bytes};
}

/// Nibbles n0 ... n7 of a stored word -> byte b holds n_b (low) and n_(4+b) (high).
uint32_t InterleaveNibbles(uint32_t stored) {
  const auto spread = [](uint32_t v) {
    v = (v | v << 8) & 0x00FF00FFu;
    return (v | v << 4) & 0x0F0F0F0Fu;
  };
  return spread(stored & 0xFFFFu) | spread(stored >> 16) << 4;
}

void PackFp4(const StoredMatrix& m, size_t first, size_t rows, size_t super_blocks,
             size_t block_inputs, std::byte* out) {
  const size_t scales_per_block = kBlockInputs / block_inputs;  // nvfp4 2, mxfp4 1
  const size_t scales = m.cols / block_inputs;
  const size_t row_bytes = m.cols / 2, stride = m.RowStride();
  const bool blocks = IsGgufBlock(m.storage);
  std::vector<std::byte> split(blocks ? row_bytes + scales : 0);
  for (size_t lane = 0; lane < rows; ++lane) {
    const std::byte* codes = m.data + (first + lane) * (stride / 2);
    const std::byte* row_scales = m.scales + (first + lane) * (stride / block_inputs);
    if (blocks) {
      const size_t stored = stride / GgufBlockInputs(m.storage) * GgufBlockBytes(m.storage);
      SplitFp4Blocks(m.storage, m.data + (first + lane) * stored, m.cols, split.data(),
                     split.data() + row_bytes);
      codes = split.data();
      row_scales = split.data() + row_bytes;
    }
    for (size_t b = 0; b * kBlockInputs < m.cols; ++b) {
      const BlockPlace place = Place(out, b, super_blocks, 256);
      for (size_t s = 0; s < scales_per_block && b * scales_per_block + s < scales; ++s) {
        place.header[(place.index * scales_per_block + s) * 16 + lane] =
            row_scales[b * scales_per_block + s];
      }
      for (size_t k = 0; k < 4 && b * 16 + k * 4 < row_bytes; ++k) {
        uint32_t word;
        std::memcpy(&word, codes + b * 16 + k * 4, sizeof(word));
        word = InterleaveNibbles(word);
        std::memcpy(place.codes + k * 64 + lane * 4, &word, sizeof(word));
      }
    }
  }
}

void PackFP8(const StoredMatrix& m, size_t first, size_t rows, size_t super_blocks,
             std::byte* out) {
  for (size_t lane = 0; lane < rows; ++lane) {
    const size_t row = first + lane;
    const size_t per_row = m.scales == nullptr ? 0 : DivCeil(m.cols, m.scale_block_cols);
    for (size_t b = 0; b * kBlockInputs < m.cols; ++b) {
      const BlockPlace place = Place(out, b, super_blocks, 512);
      if (place.index == 0) {
        float scale = 1.0f;
        if (m.scales != nullptr) {
          const size_t at =
              row / m.scale_block_rows * per_row + b * kBlockInputs / m.scale_block_cols;
          if (m.scale_storage == Storage::kBF16) {
            uint16_t bits;
            std::memcpy(&bits, m.scales + at * 2, sizeof(bits));
            scale = BF16ToFloat(bits);
          } else {
            std::memcpy(&scale, m.scales + at * 4, sizeof(scale));
          }
        }
        scale = scale * m.global_scale * 256.0f;  // the kernels read codes as value / 256
        std::memcpy(place.header + lane * 4, &scale, sizeof(scale));
      }
      const size_t n = std::min(kBlockInputs, m.cols - b * kBlockInputs);
      const std::byte* codes = m.data + row * m.cols + b * kBlockInputs;
      for (size_t i = 0; i < n; ++i) place.codes[i / 2 * 32 + lane * 2 + i % 2] = codes[i];
    }
  }
}

/// A model has as many scales as it has bytes: the usual ones, 2^-14 to 2^15, do without the call
/// of FloatToF16.
bool IsUsualF16(float value) { return (std::bit_cast<uint32_t>(value) >> 23 & 0xFF) - 113u < 29u; }
uint16_t UsualToF16(float value) {
  const auto f32 = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (f32 & 0x7FFFFFFFu) + 0x0FFFu + (f32 >> 13 & 1u) - (112u << 23);
  return static_cast<uint16_t>((f32 >> 16 & 0x8000u) | rounded >> 13);
}

/// False when a scale is not finite as f16.
bool StoreF16(std::byte* to, float value) {
  const uint16_t bits = IsUsualF16(value) ? UsualToF16(value) : FloatToF16(value);
  std::memcpy(to, &bits, sizeof(bits));
  return (bits & 0x7C00) != 0x7C00;
}

/// Eight codes, a byte each, as a word of the 4-bit panels.
uint32_t JoinNibbles(uint64_t codes) {
  return static_cast<uint32_t>(codes) | static_cast<uint32_t>(codes >> 32) << 4;
}

constexpr uint64_t kLowNibbles = 0x0F0F0F0F0F0F0F0Full;

/// Nibbles of 32 codes as the 4-bit panels have them.
void StoreNibbles(const uint8_t (&codes)[32], size_t lane, std::byte* out) {
  for (size_t k = 0; k < 4; ++k) {
    uint64_t eight;
    std::memcpy(&eight, codes + k * 8, sizeof(eight));
    const uint32_t word = JoinNibbles(eight & kLowNibbles);
    std::memcpy(out + k * 64 + lane * 4, &word, sizeof(word));
  }
}

Error BadGgufScale(const StoredMatrix& m, size_t row, size_t block) {
  return MakeError(ErrorCode::kCorrupt,
                   "{}: row {}: the scale of inputs {} ... {} is not finite, or too large for f16",
                   m.name, row, block * kBlockInputs, block * kBlockInputs + kBlockInputs - 1);
}

/// 32 inputs of compressed-tensors' int4: the codes as they are, the minimum at code 0.
GgufRun4 LoadInt4Run(const StoredMatrix& m, size_t row, size_t block) {
  GgufRun4 run;
  const std::byte* codes = m.data + (row * m.cols + block * kBlockInputs) / 2;
  for (size_t i = 0; i < kBlockInputs; ++i)
    run.codes[i] = static_cast<uint8_t>(static_cast<int>(codes[i / 2]) >> (i % 2 * 4) & 15);
  run.scale = BlockScaleAt(
      m, row * (m.cols / m.scale_block_cols) + block * kBlockInputs / m.scale_block_cols);
  run.minimum = -8.0f * run.scale;
  return run;
}

/// Sixteen values as f16; false when one is not among the usual ones (zeros count as unusual).
bool UsualF16(const float (&values)[16], uint16_t (&out)[16]) {
  uint32_t unusual = 0;
  for (size_t i = 0; i < 16; ++i) {
    unusual |= static_cast<uint32_t>(!IsUsualF16(values[i]));
    out[i] = UsualToF16(values[i]);
  }
  return unusual == 0;
}

/// Eight runs at once: the time to load a model is the time this takes.
Status PackQ4K(const StoredMatrix& m, size_t first, size_t rows, std::byte* out) {
  constexpr size_t kInputs = 256, kBytes = 144, kRunBytes = kHeaderBytes + 256;
  constexpr uint32_t kLow = 0x0F0F0F0Fu;
  const size_t row_bytes = m.cols / kInputs * kBytes;
  for (size_t lane = 0; lane < rows; ++lane) {
    const std::byte* block = m.data + (first + lane) * row_bytes;
    std::byte* run = out;
    for (size_t b = 0; b * kInputs < m.cols; ++b, block += kBytes, run += 8 * kRunBytes) {
      const Q4KScales scales = LoadQ4KScales(block);
      float values[16];
      std::memcpy(values, scales.scale, sizeof(scales.scale));
      std::memcpy(values + 8, scales.minimum, sizeof(scales.minimum));
      uint16_t halves[16];
      const bool usual = UsualF16(values, halves);
      for (size_t j = 0; j < 8; ++j) {
        std::byte* header = run + j * kRunBytes + lane * 2;
        if (usual) {
          std::memcpy(header, &halves[j], 2);
          std::memcpy(header + 32, &halves[8 + j], 2);
        } else if (!StoreF16(header, values[j]) || !StoreF16(header + 32, values[8 + j])) {
          return BadGgufScale(m, first + lane, b * 8 + j);
        }
      }
      for (size_t j = 0; j < 8; j += 2) {
        std::byte* codes = run + j * kRunBytes + kHeaderBytes + lane * 4;
        for (size_t k = 0; k < 4; ++k) {
          uint32_t stored[2];
          std::memcpy(stored, block + 16 + j * 16 + k * 8, sizeof(stored));
          const uint32_t low = (stored[0] & kLow) | (stored[1] & kLow) << 4;
          const uint32_t high = (stored[0] >> 4 & kLow) | (stored[1] & ~kLow);
          std::memcpy(codes + k * 64, &low, sizeof(low));
          std::memcpy(codes + kRunBytes + k * 64, &high, sizeof(high));
        }
      }
    }
  }
  return {};
}

Status PackQ4(const StoredMatrix& m, size_t first, size_t rows, size_t super_blocks,
              std::byte* out) {
  if (m.storage == Storage::kQ4_K) return PackQ4K(m, first, rows, out);
  for (size_t lane = 0; lane < rows; ++lane) {
    for (size_t b = 0; b * kBlockInputs < m.cols; ++b) {
      const BlockPlace place = Place(out, b, super_blocks, 256);
      const GgufRun4 run = m.storage == Storage::kInt4 ? LoadInt4Run(m, first + lane, b)
                                                       : LoadGgufRun4(m, first + lane, b);
      if (!StoreF16(place.header + lane * 2, run.scale) ||
          !StoreF16(place.header + 32 + lane * 2, run.minimum)) {
        return BadGgufScale(m, first + lane, b);
      }
      StoreNibbles(run.codes, lane, place.codes);
    }
  }
  return {};
}

Status PackQ6(const StoredMatrix& m, size_t first, size_t rows, size_t super_blocks,
              std::byte* out) {
  for (size_t lane = 0; lane < rows; ++lane) {
    for (size_t b = 0; b * kBlockInputs < m.cols; ++b) {
      const BlockPlace place = Place(out, b, super_blocks, 384);
      const GgufRun6 run = LoadGgufRun6(m, first + lane, b);
      for (size_t half = 0; half < 2; ++half) {
        if (!StoreF16(place.header + half * 32 + lane * 2, run.scales[half]))
          return BadGgufScale(m, first + lane, b);
      }
      StoreNibbles(run.codes, lane, place.codes);
      for (size_t half = 0; half < 2; ++half) {
        uint32_t high = 0;
        for (size_t j = 0; j < 4; ++j) {
          uint32_t four;
          std::memcpy(&four, run.codes + half * 16 + j * 4, sizeof(four));
          high |= (four >> 4 & 0x03030303u) << (2 * j);
        }
        std::memcpy(place.codes + 256 + half * 64 + lane * 4, &high, sizeof(high));
      }
    }
  }
  return {};
}

/// False when a value is not finite.
bool PackQ8Row(const float* values, size_t cols, size_t lane, size_t super_blocks, std::byte* out) {
  for (size_t b = 0; b * kBlockInputs < cols; ++b) {
    const BlockPlace place = Place(out, b, super_blocks, 512);
    const size_t n = std::min(kBlockInputs, cols - b * kBlockInputs);
    float max = 0.0f;
    for (size_t i = 0; i < n; ++i) {
      const float a = std::fabs(values[b * kBlockInputs + i]);
      if (!(a <= std::numeric_limits<float>::max())) return false;
      max = std::max(max, a);
    }
    const uint16_t scale_bits = FloatToBF16(max / 127.0f);
    const float scale = BF16ToFloat(scale_bits);
    std::memcpy(place.header + place.index * 32 + lane * 2, &scale_bits, sizeof(scale_bits));
    for (size_t i = 0; i < n; ++i) {
      const float q = scale > 0.0f ? std::nearbyint(values[b * kBlockInputs + i] / scale) : 0.0f;
      const int code = static_cast<int>(std::clamp(q, -127.0f, 127.0f)) + kQ8Offset;
      place.codes[i / 4 * 64 + lane * 4 + i % 4] = static_cast<std::byte>(code);
    }
  }
  return true;
}

Error NotFinite(const StoredMatrix& m, size_t row, const std::vector<float>& values) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  return MakeError(ErrorCode::kCorrupt, "{}: weight [{}, {}] is {}, which int8 blocks cannot hold",
                   m.name, row, bad - values.begin(), *bad);
}

/// Whether the codes and scales of the panel are those that are stored.
bool IsOwnQ8(const StoredMatrix& m) {
  return m.storage == Storage::kInt8 && m.scale_storage == Storage::kBF16 &&
         m.scale_block_rows == 1 && m.scale_block_cols == kBlockInputs;
}

void CopyQ8(const StoredMatrix& m, size_t first, size_t rows, size_t super_blocks, std::byte* out) {
  const size_t per_row = DivCeil(m.cols, kBlockInputs);
  for (size_t lane = 0; lane < rows; ++lane) {
    for (size_t b = 0; b < per_row; ++b) {
      const BlockPlace place = Place(out, b, super_blocks, 512);
      std::memcpy(place.header + place.index * 32 + lane * 2,
                  m.scales + ((first + lane) * per_row + b) * 2, 2);
      const size_t n = std::min(kBlockInputs, m.cols - b * kBlockInputs);
      const std::byte* codes = m.data + (first + lane) * m.cols + b * kBlockInputs;
      for (size_t i = 0; i < n; ++i)
        place.codes[i / 4 * 64 + lane * 4 + i % 4] = codes[i] ^ static_cast<std::byte>(kQ8Offset);
    }
  }
}

/// Formats made from fp32 values of any storage.
Status PackFromFloats(const StoredMatrix& m, WeightFormat format, size_t first, size_t rows,
                      size_t super_blocks, std::byte* out) {
  std::vector<float> values(m.cols);
  for (size_t lane = 0; lane < rows; ++lane) {
    DequantizeRow(m, first + lane, values.data());
    if (format == WeightFormat::kQ8) {
      if (!PackQ8Row(values.data(), m.cols, lane, super_blocks, out))
        return NotFinite(m, first + lane, values);
      continue;
    }
    for (size_t i = 0; i < m.cols; ++i) {
      if (format == WeightFormat::kF32) {
        std::memcpy(out + i * 64 + lane * 4, &values[i], sizeof(float));
      } else {
        const uint16_t bits = FloatToBF16(values[i]);
        std::memcpy(out + i / 2 * 64 + lane * 4 + i % 2 * 2, &bits, sizeof(bits));
      }
    }
  }
  return {};
}

}  // namespace

Status ValidateForPacking(const StoredMatrix& source) {
  RETURN_IF_ERROR(ValidateScales(source));
  if (source.storage == Storage::kF8E4M3) {
    for (size_t i = 0; i < source.rows * source.cols; ++i) {
      if ((static_cast<uint8_t>(source.data[i]) & 0x7F) == 0x7F) {
        return MakeError(ErrorCode::kCorrupt, "{}: weight [{}, {}] is NaN", source.name,
                         i / source.cols, i % source.cols);
      }
    }
  }
  return {};
}

Status PackPanel(const StoredMatrix& source, WeightFormat format, size_t panel, size_t super_blocks,
                 std::byte* out) {
  const size_t first = panel * kPanelRows;
  const size_t rows = std::min(kPanelRows, source.rows - first);
  switch (format) {
    case WeightFormat::kNVFP4:
      PackFp4(source, first, rows, super_blocks, 16, out);
      return {};
    case WeightFormat::kMXFP4:
      PackFp4(source, first, rows, super_blocks, 32, out);
      return {};
    case WeightFormat::kFP8:
      PackFP8(source, first, rows, super_blocks, out);
      return {};
    case WeightFormat::kQ4:
      return PackQ4(source, first, rows, super_blocks, out);
    case WeightFormat::kQ6:
      return PackQ6(source, first, rows, super_blocks, out);
    case WeightFormat::kQ8:
      if (IsOwnQ8(source)) {
        CopyQ8(source, first, rows, super_blocks, out);
        return {};
      }
      [[fallthrough]];
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
      return PackFromFloats(source, format, first, rows, super_blocks, out);
  }
  return {};
}

}  // namespace carpool
