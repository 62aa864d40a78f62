#include "quant/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "quant/gguf_decoders.h"

namespace carpool {
namespace {

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4, Storage::kF32},
    {1, "F16", 1, 2, Storage::kF16},
    {2, "Q4_0", 32, 18, Storage::kQ4_0},
    {3, "Q4_1", 32, 20, Storage::kQ4_1},
    {6, "Q5_0", 32, 22, Storage::kQ5_0},
    {7, "Q5_1", 32, 24, Storage::kQ5_1},
    {8, "Q8_0", 32, 34, Storage::kQ8_0},
    {9, "Q8_1", 32, 36, {}},
    {10, "Q2_K", 256, 84, Storage::kQ2_K},
    {11, "Q3_K", 256, 110, Storage::kQ3_K},
    {12, "Q4_K", 256, 144, Storage::kQ4_K},
    {13, "Q5_K", 256, 176, Storage::kQ5_K},
    {14, "Q6_K", 256, 210, Storage::kQ6_K},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, Storage::kIQ4_NL},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, Storage::kIQ4_XS},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {30, "BF16", 1, 2, Storage::kBF16},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, Storage::kGgufMXFP4},
    {40, "NVFP4", 64, 36, Storage::kGgufNVFP4},
};

struct BlockKind {
  Storage storage;
  void (*decode)(const uint8_t* block, float* out);
};
constexpr BlockKind kKinds[] = {
    {Storage::kQ4_0, DecodeQ4_0},       {Storage::kQ4_1, DecodeQ4_1},
    {Storage::kQ5_0, DecodeQ5_0},       {Storage::kQ5_1, DecodeQ5_1},
    {Storage::kQ8_0, DecodeQ8_0},       {Storage::kQ2_K, DecodeQ2_K},
    {Storage::kQ3_K, DecodeQ3_K},       {Storage::kQ4_K, DecodeQ4_K},
    {Storage::kQ5_K, DecodeQ5_K},       {Storage::kQ6_K, DecodeQ6_K},
    {Storage::kIQ4_NL, DecodeIQ4_NL},   {Storage::kIQ4_XS, DecodeIQ4_XS},
    {Storage::kGgufMXFP4, DecodeMXFP4}, {Storage::kGgufNVFP4, DecodeNVFP4},
};

const BlockKind* FindKind(Storage storage) {
  const auto* it = std::find_if(std::begin(kKinds), std::end(kKinds),
                                [&](const BlockKind& k) { return k.storage == storage; });
  return it == std::end(kKinds) ? nullptr : it;
}

const GgmlType& BlockType(Storage storage) {
  const GgmlType* type = GgmlTypeOf(storage);
  CARPOOL_CHECK(type != nullptr && IsGgufBlock(storage));
  return *type;
}

uint8_t Nibble(const std::byte* bytes, size_t half, size_t i) {
  const auto byte = static_cast<uint8_t>(bytes[i % half]);
  return i < half ? byte & 0x0F : byte >> 4;
}

}  // namespace

std::span<const GgmlType> GgmlTypes() { return kTypes; }

const GgmlType* FindGgmlType(uint32_t id) {
  const auto* it = std::find_if(std::begin(kTypes), std::end(kTypes),
                                [&](const GgmlType& t) { return t.id == id; });
  return it == std::end(kTypes) ? nullptr : it;
}

const GgmlType* GgmlTypeOf(Storage storage) {
  const auto* it = std::find_if(std::begin(kTypes), std::end(kTypes),
                                [&](const GgmlType& t) { return t.storage == storage; });
  return it == std::end(kTypes) ? nullptr : it;
}

bool IsGgufBlock(Storage storage) { return FindKind(storage) != nullptr; }
size_t GgufBlockInputs(Storage storage) { return BlockType(storage).block_inputs; }
size_t GgufBlockBytes(Storage storage) { return BlockType(storage).block_bytes; }

void DecodeGgufBlocks(Storage storage, const std::byte* blocks, size_t n, float* out) {
  const GgmlType& type = BlockType(storage);
  auto* const decode = FindKind(storage)->decode;
  CARPOOL_CHECK_EQ(n % type.block_inputs, 0u);
  const auto* in = reinterpret_cast<const uint8_t*>(blocks);
  for (size_t i = 0; i < n; i += type.block_inputs, in += type.block_bytes) decode(in, out + i);
}

void SplitFp4Blocks(Storage storage, const std::byte* blocks, size_t n, std::byte* codes,
                    std::byte* scales) {
  // Both hold runs of `run` inputs whose first half is in the low nibbles of run / 2 bytes.
  const bool nv = storage == Storage::kGgufNVFP4;
  const size_t run = nv ? 16 : 32, runs = nv ? 4 : 1, block_bytes = GgufBlockBytes(storage);
  for (size_t r = 0; r * run < n; ++r) {
    const std::byte* block = blocks + r / runs * block_bytes;
    const auto scale = static_cast<uint8_t>(block[r % runs]);
    const bool none = nv && (scale & 0x7F) == 0x7F;
    scales[r] = static_cast<std::byte>(none ? 0 : nv ? scale & 0x7F : scale);
    const std::byte* nibbles = block + runs + r % runs * (run / 2);
    for (size_t i = 0; i < run; i += 2) {
      codes[(r * run + i) / 2] = static_cast<std::byte>(Nibble(nibbles, run / 2, i) |
                                                        Nibble(nibbles, run / 2, i + 1) << 4);
    }
  }
}

}  // namespace carpool
