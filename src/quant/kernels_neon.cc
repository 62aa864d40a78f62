// Panel kernels for 64-bit Arm with the dot-product instructions: four lanes. Compiled with
// -march=armv8.2-a+dotprod; everything but NeonKernels() has internal linkage. `make neon` runs its
// tests on other machines.
#include "quant/panel_kernels.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

namespace carpool {
namespace {

struct Vec {
  static constexpr size_t kLanes = 4;
  static constexpr int kMaxRows = 8;
  using F = float32x4_t;
  using I = uint32x4_t;
  using H = uint16x4_t;

  static const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }
  static F LoadF(const std::byte* p) { return vreinterpretq_f32_u8(vld1q_u8(Bytes(p))); }
  static F LoadU(const float* p) { return vld1q_f32(p); }
  static I LoadI(const std::byte* p) { return vreinterpretq_u32_u8(vld1q_u8(Bytes(p))); }
  static H LoadH(const std::byte* p) { return vreinterpret_u16_u8(vld1_u8(Bytes(p))); }
  static void Store(float* p, F v) { vst1q_f32(p, v); }
  static F Broadcast(const float* p) { return vld1q_dup_f32(p); }
  static F Zero() { return vdupq_n_f32(0.0f); }
  static F Mul(F a, F b) { return vmulq_f32(a, b); }
  static F Add(F a, F b) { return vaddq_f32(a, b); }
  static F Div(F a, F b) { return vdivq_f32(a, b); }
  static F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F Min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }  // b where either is NaN
  static F Max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F Round(F v) { return vrndnq_f32(v); }
  static F ScaleByPowerOf2(F v, F n) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
  }

  static F BF16Low(I w) { return vreinterpretq_f32_u32(vshlq_n_u32(w, 16)); }
  static F BF16High(I w) { return vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xFFFF0000u))); }
  static F E4M3LowOver256(H w) { return E4M3HighOver256(vshl_n_u16(w, 8)); }
  static F E4M3HighOver256(H w) {
    const int16x4_t shifted = vshr_n_s16(vreinterpret_s16_u16(w), 1);
    return vcvt_f32_f16(
        vreinterpret_f16_u16(vand_u16(vreinterpret_u16_s16(shifted), vdup_n_u16(0xBF80))));
  }
  template <int kShift, uint32_t kMask, int kOffset>
  static F BitsValue(I w) {
    const I bits = vandq_u32(vshlq_u32(w, vdupq_n_s32(-kShift)), vdupq_n_u32(kMask));
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(bits), vdupq_n_s32(kOffset)));
  }
  template <int kShift>
  static F Fp4Value(I w) {
    // As bytes of twice the value (-12 ... 12), then exact conversions.
    const I code = vandq_u32(vshlq_u32(w, vdupq_n_s32(-kShift)), vdupq_n_u32(0x0F));
    const I twice =
        vandq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(Fp4Table(), vreinterpretq_u8_u32(code))),
                  vdupq_n_u32(0xFF));
    const F magnitude = vmulq_n_f32(
        vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(twice), vdupq_n_s32(kFp4Offset))), 0.5f);
    // The code for -0 keeps its sign, as in the other variants.
    const I sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(8)), 28);
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(magnitude), sign));
  }
  static I LoadBytes(const std::byte* p) {
    uint32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
  }
  static F ScaleE4M3(const std::byte* p) {
    return vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(LoadBytes(p), 20)),
                     vreinterpretq_f32_u32(vdupq_n_u32(247u << 23)));
  }
  static F ScaleE8M0(const std::byte* p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(LoadBytes(p), 23));
  }
  static F ScaleBF16(const std::byte* p) { return BF16Low(vmovl_u16(LoadH(p))); }

  static F ScaleF16(const std::byte* p) { return vcvt_f32_f16(vreinterpret_f16_u16(LoadH(p))); }
  template <int kShift, int j>
  static I SixBits(I nibbles, I high) {
    const uint8x16_t low =
        vandq_u8(vshlq_u8(vreinterpretq_u8_u32(nibbles), vdupq_n_s8(-kShift)), vdupq_n_u8(0x0F));
    const uint8x16_t bits =
        vandq_u8(vshlq_u8(vreinterpretq_u8_u32(high), vdupq_n_s8(4 - 2 * j)), vdupq_n_u8(0x30));
    return vreinterpretq_u32_u8(vorrq_u8(low, bits));
  }
  template <int kAdd>
  static I AddBytes(I v) {
    return vreinterpretq_u32_u8(vaddq_u8(vreinterpretq_u8_u32(v), vdupq_n_u8(kAdd)));
  }
  static I LowNibbles(I w) {
    return vreinterpretq_u32_u8(vandq_u8(vreinterpretq_u8_u32(w), vdupq_n_u8(0x0F)));
  }
  static I HighNibbles(I w) { return vreinterpretq_u32_u8(vshrq_n_u8(vreinterpretq_u8_u32(w), 4)); }
  static I BroadcastI(const int32_t* p) { return vreinterpretq_u32_s32(vld1q_dup_s32(p)); }

  static uint8x16_t Fp4Table() {
    static const uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return vld1q_u8(kTable);
  }
  static I Fp4Low(I w) {
    return vreinterpretq_u32_u8(
        vqtbl1q_u8(Fp4Table(), vandq_u8(vreinterpretq_u8_u32(w), vdupq_n_u8(0x0F))));
  }
  static I Fp4High(I w) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(Fp4Table(), vshrq_n_u8(vreinterpretq_u8_u32(w), 4)));
  }
  static int8x16_t Broadcast4(const int8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, sizeof(v));
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
  }
  static I DotFp4x16(const int32_t* init, const I (&w)[4], const int8_t* x) {
    int32x4_t sum = vld1q_dup_s32(init);
    for (int k = 0; k < 4; ++k)
      sum = vdotq_s32(sum, vreinterpretq_s8_u32(w[k]), Broadcast4(x + 4 * k));
    return vreinterpretq_u32_s32(sum);
  }
  static I DotQ8x32(const int32_t*, const std::byte* codes, const int8_t* x) {
    int32x4_t sum = vdupq_n_s32(0);  // signed weights: no offset to correct
    for (int k = 0; k < 8; ++k) {
      const uint8x16_t w = veorq_u8(vld1q_u8(Bytes(codes + k * 64)), vdupq_n_u8(0x80));
      sum = vdotq_s32(sum, vreinterpretq_s8_u8(w), Broadcast4(x + 4 * k));
    }
    return vreinterpretq_u32_s32(sum);
  }
  static I DotNibbles32(const I (&w)[8], const int8_t* x) {
    int32x4_t sum = vdupq_n_s32(0);
    for (int k = 0; k < 8; ++k)
      sum = vdotq_s32(sum, vreinterpretq_s8_u32(w[k]), Broadcast4(x + 4 * k));
    return vreinterpretq_u32_s32(sum);
  }
  static I DotSix16(const int32_t* neg_fp4, const I (&w)[4], const int8_t* x) {
    int32x4_t sum = vmulq_n_s32(vld1q_dup_s32(neg_fp4), 3);
    for (int k = 0; k < 4; ++k)
      sum = vdotq_s32(sum, vreinterpretq_s8_u32(w[k]), Broadcast4(x + 4 * k));
    return vreinterpretq_u32_s32(sum);
  }
  static I AddI(I a, I b) { return vaddq_u32(a, b); }
  static F ToFloat(I v) { return vcvtq_f32_s32(vreinterpretq_s32_u32(v)); }

  static float MaxAbs32(const float* x) {
    uint32x4_t max = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4) {
      max = vmaxq_u32(max,
                      vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(0x7FFFFFFF)));
    }
    const uint32_t bits = vmaxvq_u32(max);
    float result;
    __builtin_memcpy(&result, &bits, sizeof(result));
    return result;
  }
  static void Quantize32(const float* x, float inverse, int8_t* q, int32_t (&sums)[2]) {
    for (int half = 0; half < 2; ++half) {
      int32x4_t total = vdupq_n_s32(0);
      for (int k = 0; k < 16; k += 4) {
        const int32x4_t v = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * half + k), inverse));
        total = vaddq_s32(total, v);
        int32_t four[4];
        vst1q_s32(four, v);
        for (int l = 0; l < 4; ++l) q[16 * half + k + l] = static_cast<int8_t>(four[l]);
      }
      sums[half] = vaddvq_s32(total);
    }
  }
};

}  // namespace
}  // namespace carpool

#include "quant/panel_kernels-inl.h"

namespace carpool {
const KernelSet* NeonKernels() {
  static constexpr KernelSet kSet = MakeKernelSet(Isa::kNeon);
  return &kSet;
}
}  // namespace carpool
#else
namespace carpool {
const KernelSet* NeonKernels() { return nullptr; }
}  // namespace carpool
#endif
