// One block of each GGUF format -> fp32. Internal to gguf_blocks.
#pragma once

#include <cstdint>

namespace carpool {

// d: the block's fp16 factor; m: its fp16 minimum; q: a code.
void DecodeQ4_0(const uint8_t* block, float* out);  // d (q - 8)
void DecodeQ4_1(const uint8_t* block, float* out);  // d q + m
void DecodeQ5_0(const uint8_t* block, float* out);  // d (q - 16)
void DecodeQ5_1(const uint8_t* block, float* out);  // d q + m
void DecodeQ8_0(const uint8_t* block, float* out);  // d q
// Superblocks of 256 with integer scales per 16 or 32 inputs.
void DecodeQ2_K(const uint8_t* block, float* out);
void DecodeQ3_K(const uint8_t* block, float* out);
void DecodeQ4_K(const uint8_t* block, float* out);
void DecodeQ5_K(const uint8_t* block, float* out);
void DecodeQ6_K(const uint8_t* block, float* out);
// Codes into a table of 16 values.
void DecodeIQ4_NL(const uint8_t* block, float* out);
void DecodeIQ4_XS(const uint8_t* block, float* out);
void DecodeMXFP4(const uint8_t* block, float* out);
void DecodeNVFP4(const uint8_t* block, float* out);

}  // namespace carpool
