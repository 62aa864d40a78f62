// The block formats of GGUF files (ggml): sizes, exact decoding, and the two 4-bit float formats as
// codes and scales.
//
// A row of a matrix is a run of blocks along the inputs. Layouts as in ggml's block structs:
// https:// github.com/ggml-org/llama.cpp. Decoding is exact: fp32 operations in ggml's own order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quant/stored_matrix.h"

namespace carpool {

/// One type id of a GGUF tensor.
struct GgmlType {
  uint32_t id = 0;
  std::string_view name;  // as GGUF tools print it: "Q4_K"
  size_t block_inputs = 1;
  size_t block_bytes = 0;
  /// Null: known by name, but Carpool has no decoder.
  std::optional<Storage> storage;
};
/// THE LIST of GGUF types: every id ggml ever gave out.
std::span<const GgmlType> GgmlTypes();
/// Null for an id nobody knows.
const GgmlType* FindGgmlType(uint32_t id);
/// Null for storages that GGUF has no type for.
const GgmlType* GgmlTypeOf(Storage storage);

/// True for the storages that lie in blocks with their scales inside.
bool IsGgufBlock(Storage storage);
/// Of a block storage.
size_t GgufBlockInputs(Storage storage);
size_t GgufBlockBytes(Storage storage);

/// Writes `n` weights (a multiple of the block) of a block storage to `out`.
void DecodeGgufBlocks(Storage storage, const std::byte* blocks, size_t n, float* out);

/// 32 inputs of a row as codes: value = code * scale + minimum, scale and minimum rounded to fp32
/// once. kQ4_0, kQ4_1 and kQ4_K.
struct GgufRun4 {
  uint8_t codes[32];
  float scale, minimum;
};
GgufRun4 LoadGgufRun4(const StoredMatrix& matrix, size_t row, size_t run);
/// Scales and minima of the eight runs of a kQ4_K block; its nibbles begin at byte 16, 32 bytes for
/// every two runs, the first one low.
struct Q4KScales {
  float scale[8], minimum[8];
};
Q4KScales LoadQ4KScales(const std::byte* block);
/// The same of kQ6_K: value = (code - 32) * scales[input / 16].
struct GgufRun6 {
  uint8_t codes[32];
  float scales[2];
};
GgufRun6 LoadGgufRun6(const StoredMatrix& matrix, size_t row, size_t run);

/// One row of kGgufMXFP4 or kGgufNVFP4 as the safetensors layouts have it: `codes` [n / 2], the
/// even input in the low nibble; `scales` e8m0 [n / 32] or e4m3 [n / 16] (those GGUF reads as 0
/// become 0).
void SplitFp4Blocks(Storage storage, const std::byte* blocks, size_t n, std::byte* codes,
                    std::byte* scales);

}  // namespace carpool
