// Panel kernels for AVX-512 with VNNI and VBMI: sixteen lanes, one vector is a whole panel wide.
// Compiled with -mavx512{f,bw,dq,vl,vnni,vbmi}; everything but Avx512Kernels() has internal
// linkage.
#include "quant/panel_kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#include <immintrin.h>

namespace carpool {
namespace {

struct Vec {
  static constexpr size_t kLanes = 16;
  static constexpr int kMaxRows =
      8;  // 2 x 8 chains + 8 sums + weight, scale, table in 32 registers
  using F = __m512;
  using I = __m512i;
  using H = __m256i;

  static F LoadF(const std::byte* p) { return _mm512_loadu_ps(p); }
  static F LoadU(const float* p) { return _mm512_loadu_ps(p); }
  static I LoadI(const std::byte* p) { return _mm512_loadu_si512(p); }
  static H LoadH(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static F Zero() { return _mm512_setzero_ps(); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Round(F v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F ScaleByPowerOf2(F v, F n) {
    const I exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_mul_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)));
  }

  static F BF16Low(I w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
  static F BF16High(I w) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static F E4M3LowOver256(H w) { return E4M3HighOver256(_mm256_slli_epi16(w, 8)); }
  static F E4M3HighOver256(H w) {
    return _mm512_cvtph_ps(
        _mm256_and_si256(_mm256_srai_epi16(w, 1), _mm256_set1_epi16(static_cast<short>(0xBF80))));
  }
  template <int kShift, uint32_t kMask, int kOffset>
  static F BitsValue(I w) {
    const I bits =
        _mm512_and_si512(_mm512_srli_epi32(w, kShift), _mm512_set1_epi32(static_cast<int>(kMask)));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(bits, _mm512_set1_epi32(kOffset)));
  }
  template <int kShift>
  static F Fp4Value(I w) {
    const F values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                    -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(w, kShift),
                                 values);  // reads the low four bits of each lane
  }
  static I LoadBytes(const std::byte* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F ScaleE4M3(const std::byte* p) {
    const F two_to_120 = _mm512_castsi512_ps(_mm512_set1_epi32(247 << 23));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(LoadBytes(p), 20)), two_to_120);
  }
  static F ScaleE8M0(const std::byte* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(LoadBytes(p), 23));
  }
  static F ScaleBF16(const std::byte* p) { return BF16Low(_mm512_cvtepu16_epi32(LoadH(p))); }

  static F ScaleF16(const std::byte* p) { return _mm512_cvtph_ps(LoadH(p)); }
  template <int kShift, int j>
  static I SixBits(I nibbles, I high) {
    const I low = kShift == 0 ? nibbles : _mm512_srli_epi16(nibbles, 4);
    constexpr auto kShiftHigh = static_cast<unsigned>(j < 2 ? 4 - 2 * j : 2 * j - 4);
    const I bits =
        j < 2 ? _mm512_slli_epi16(high, kShiftHigh) : _mm512_srli_epi16(high, kShiftHigh);
    // The low four bits of one, the next two of the other.
    const I both = _mm512_ternarylogic_epi32(low, bits, _mm512_set1_epi8(0x0F), 0xE4);
    return _mm512_and_si512(both, _mm512_set1_epi8(0x3F));
  }
  template <int kAdd>
  static I AddBytes(I v) {
    return _mm512_add_epi8(v, _mm512_set1_epi8(kAdd));
  }
  static I LowNibbles(I w) { return _mm512_and_si512(w, _mm512_set1_epi8(0x0F)); }
  static I HighNibbles(I w) { return LowNibbles(_mm512_srli_epi16(w, 4)); }
  static I BroadcastI(const int32_t* p) { return _mm512_set1_epi32(*p); }

  /// vpermb reads six bits of each index, so a table repeated four times ignores the neighbouring
  /// nibble: no masking.
  static I Fp4Table() {
    return _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  }
  static I Fp4Low(I w) { return _mm512_permutexvar_epi8(w, Fp4Table()); }
  static I Fp4High(I w) { return _mm512_permutexvar_epi8(_mm512_srli_epi16(w, 4), Fp4Table()); }
  static I Broadcast4(const int8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, sizeof(v));
    return _mm512_set1_epi32(v);
  }
  static I DotFp4x16(const int32_t* init, const I (&w)[4], const int8_t* x) {
    I sum = _mm512_set1_epi32(*init);
    for (int k = 0; k < 4; ++k) sum = _mm512_dpbusd_epi32(sum, w[k], Broadcast4(x + 4 * k));
    return sum;
  }
  static I DotQ8x32(const int32_t* init, const std::byte* codes, const int8_t* x) {
    I sum = _mm512_set1_epi32(*init);
    for (int k = 0; k < 8; ++k)
      sum = _mm512_dpbusd_epi32(sum, LoadI(codes + k * 64), Broadcast4(x + 4 * k));
    return sum;
  }
  static I DotNibbles32(const I (&w)[8], const int8_t* x) {
    I sum = _mm512_setzero_si512();
    for (int k = 0; k < 8; ++k) sum = _mm512_dpbusd_epi32(sum, w[k], Broadcast4(x + 4 * k));
    return sum;
  }
  static I DotSix16(const int32_t* neg_fp4, const I (&w)[4], const int8_t* x) {
    const I once = _mm512_set1_epi32(*neg_fp4);
    I sum = _mm512_add_epi32(_mm512_add_epi32(once, once), once);
    for (int k = 0; k < 4; ++k) sum = _mm512_dpbusd_epi32(sum, w[k], Broadcast4(x + 4 * k));
    return sum;
  }
  static I AddI(I a, I b) { return _mm512_add_epi32(a, b); }
  static F ToFloat(I v) { return _mm512_cvtepi32_ps(v); }

  static float MaxAbs32(const float* x) {
    const I mask = _mm512_set1_epi32(0x7FFFFFFF);
    const I a = _mm512_and_si512(_mm512_castps_si512(LoadU(x)), mask);
    const I b = _mm512_and_si512(_mm512_castps_si512(LoadU(x + 16)), mask);
    const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
    float max;
    __builtin_memcpy(&max, &bits, sizeof(max));
    return max;
  }
  static void Quantize32(const float* x, float inverse, int8_t* q, int32_t (&sums)[2]) {
    const F inv = _mm512_set1_ps(inverse);
    for (int half = 0; half < 2; ++half) {
      const I v = _mm512_cvtps_epi32(_mm512_mul_ps(LoadU(x + 16 * half), inv));
      sums[half] = _mm512_reduce_add_epi32(v);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * half), _mm512_cvtepi32_epi8(v));
    }
  }
};

}  // namespace
}  // namespace carpool

#include "quant/panel_kernels-inl.h"

namespace carpool {
const KernelSet* Avx512Kernels() {
  static constexpr KernelSet kSet = MakeKernelSet(Isa::kAvx512);
  return &kSet;
}
}  // namespace carpool
#else
namespace carpool {
const KernelSet* Avx512Kernels() { return nullptr; }
}  // namespace carpool
#endif
