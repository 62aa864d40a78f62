// The readable variant of the panel kernels: one lane. The others must give the same bits.
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/panel_kernels.h"
#include "quant/stored_matrix.h"

namespace carpool {
namespace {

struct Vec {
  static constexpr size_t kLanes = 1;
  static constexpr int kMaxRows = 4;
  using F = float;
  using I = uint32_t;
  using H = uint16_t;

  template <typename T>
  static T Load(const void* p) {
    T v;
    std::memcpy(&v, p, sizeof(T));
    return v;
  }
  static F LoadF(const std::byte* p) { return Load<F>(p); }
  static F LoadU(const float* p) { return *p; }
  static I LoadI(const std::byte* p) { return Load<I>(p); }
  static H LoadH(const std::byte* p) { return Load<H>(p); }
  static void Store(float* p, F v) { *p = v; }
  static F Broadcast(const float* p) { return *p; }
  static F Zero() { return 0.0f; }
  static F Mul(F a, F b) { return a * b; }
  static F Add(F a, F b) { return a + b; }
  static F Div(F a, F b) { return a / b; }
  static F Fma(F a, F b, F c) { return std::fma(a, b, c); }
  static F Min(F a, F b) { return a < b ? a : b; }  // b where either is NaN
  static F Max(F a, F b) { return a > b ? a : b; }
  static F Round(F v) { return std::nearbyint(v); }
  static F ScaleByPowerOf2(F v, F n) {
    return v *
           std::bit_cast<float>((std::bit_cast<uint32_t>(static_cast<int32_t>(n)) + 127u) << 23);
  }

  static F BF16Low(I w) { return std::bit_cast<float>(w << 16); }
  static F BF16High(I w) { return std::bit_cast<float>(w & 0xFFFF0000u); }
  /// An e4m3 code moved into the fields of an fp16 is the value / 256: the biases differ by 8.
  static F E4M3LowOver256(H w) {
    return F16ToFloat(static_cast<uint16_t>(((w & 0x80) << 8) | ((w & 0x7F) << 7)));
  }
  static F E4M3HighOver256(H w) { return E4M3LowOver256(static_cast<uint16_t>(w >> 8)); }
  /// Bits of the word as a number, less kOffset.
  template <int kShift, uint32_t kMask, int kOffset>
  static F BitsValue(I w) {
    return static_cast<float>(static_cast<int32_t>((w >> kShift) & kMask) - kOffset);
  }
  template <int kShift>
  static F Fp4Value(I w) {
    return E2M1ToFloat(static_cast<uint8_t>((w >> kShift) & 0x0F));
  }
  static F ScaleE4M3(const std::byte* p) {
    return std::bit_cast<float>(static_cast<uint32_t>(*p) << 20) *
           std::bit_cast<float>(247u << 23);  // * 2^120
  }
  static F ScaleE8M0(const std::byte* p) {
    return std::bit_cast<float>(static_cast<uint32_t>(*p) << 23);
  }
  static F ScaleBF16(const std::byte* p) { return BF16ToFloat(Load<uint16_t>(p)); }

  static F ScaleF16(const std::byte* p) { return F16ToFloat(Load<uint16_t>(p)); }
  /// Low (kShift 0) or high (4) nibbles of four bytes, above them bits 2j and 2j + 1 of `high`'s.
  template <int kShift, int j>
  static I SixBits(I nibbles, I high) {
    return ((nibbles >> kShift) & 0x0F0F0F0Fu) | ((high >> (2 * j)) & 0x03030303u) << 4;
  }
  template <int kAdd>
  static I AddBytes(I v) {
    return v + kAdd * 0x01010101u;  // no byte overflows
  }
  static I LowNibbles(I w) { return w & 0x0F0F0F0Fu; }
  static I HighNibbles(I w) { return (w >> 4) & 0x0F0F0F0Fu; }
  static I BroadcastI(const int32_t* p) { return static_cast<uint32_t>(*p); }

  static I Fp4Bytes(I nibbles) {
    I bytes = 0;
    for (int k = 0; k < 4; ++k) {
      const auto code = static_cast<uint8_t>((nibbles >> (8 * k)) & 0x0F);
      bytes |= static_cast<uint32_t>(static_cast<int32_t>(2.0f * E2M1ToFloat(code)) + kFp4Offset)
               << (8 * k);
    }
    return bytes;
  }
  static I Fp4Low(I w) { return Fp4Bytes(w & 0x0F0F0F0Fu); }
  static I Fp4High(I w) { return Fp4Bytes((w >> 4) & 0x0F0F0F0Fu); }
  static int32_t Dot4(I w, const int8_t* x) {
    int32_t sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<int32_t>((w >> (8 * k)) & 0xFF) * x[k];
    return sum;
  }
  static I DotFp4x16(const int32_t* init, const I (&w)[4], const int8_t* x) {
    int32_t sum = *init;
    for (int k = 0; k < 4; ++k) sum += Dot4(w[k], x + 4 * k);
    return static_cast<uint32_t>(sum);
  }
  static I DotQ8x32(const int32_t* init, const std::byte* codes, const int8_t* x) {
    int32_t sum = *init;
    for (int k = 0; k < 8; ++k) sum += Dot4(LoadI(codes + k * 64), x + 4 * k);
    return static_cast<uint32_t>(sum);
  }
  static I DotNibbles32(const I (&w)[8], const int8_t* x) {
    int32_t sum = 0;
    for (int k = 0; k < 8; ++k) sum += Dot4(w[k], x + 4 * k);
    return static_cast<uint32_t>(sum);
  }
  static I DotSix16(const int32_t* neg_fp4, const I (&w)[4], const int8_t* x) {
    int32_t sum = 3 * *neg_fp4;
    for (int k = 0; k < 4; ++k) sum += Dot4(w[k], x + 4 * k);
    return static_cast<uint32_t>(sum);
  }
  static I AddI(I a, I b) { return a + b; }
  static F ToFloat(I v) { return static_cast<float>(static_cast<int32_t>(v)); }

  static float MaxAbs32(const float* x) {
    uint32_t max = 0;  // as integers, so that a NaN is the largest
    for (int i = 0; i < 32; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
      max = bits > max ? bits : max;
    }
    return std::bit_cast<float>(max);
  }
  static void Quantize32(const float* x, float inverse, int8_t* q, int32_t (&sums)[2]) {
    sums[0] = sums[1] = 0;
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
      sums[i / 16] += q[i];
    }
  }
};

}  // namespace
}  // namespace carpool

#include "quant/panel_kernels-inl.h"

namespace carpool {
const KernelSet* ScalarKernels() {
  static constexpr KernelSet kSet = MakeKernelSet(Isa::kScalar);
  return &kSet;
}
}  // namespace carpool
