// Panel kernels for AVX2 + FMA + F16C: eight lanes, so a panel is walked twice; the second walk
// finds it in L2. Compiled with -mavx2 -mfma -mf16c; everything but Avx2Kernels() has internal
// linkage.
#include "quant/panel_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace carpool {
namespace {

struct Vec {
  static constexpr size_t kLanes = 8;
  static constexpr int kMaxRows =
      4;  // 2 x 4 chains + 4 sums + weight + temporaries in 16 registers
  using F = __m256;
  using I = __m256i;
  using H = __m128i;

  static F LoadF(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static F LoadU(const float* p) { return _mm256_loadu_ps(p); }
  static I LoadI(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static H LoadH(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static F Zero() { return _mm256_setzero_ps(); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Round(F v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F ScaleByPowerOf2(F v, F n) {
    const I exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }

  static F BF16Low(I w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
  static F BF16High(I w) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static F E4M3LowOver256(H w) { return E4M3HighOver256(_mm_slli_epi16(w, 8)); }
  static F E4M3HighOver256(H w) {
    return _mm256_cvtph_ps(
        _mm_and_si128(_mm_srai_epi16(w, 1), _mm_set1_epi16(static_cast<short>(0xBF80))));
  }
  template <int kShift, uint32_t kMask, int kOffset>
  static F BitsValue(I w) {
    const I bits =
        _mm256_and_si256(_mm256_srli_epi32(w, kShift), _mm256_set1_epi32(static_cast<int>(kMask)));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(bits, _mm256_set1_epi32(kOffset)));
  }
  template <int kShift>
  static F Fp4Value(I w) {
    const F magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const F magnitude = _mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(w, kShift));
    const F sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(w, 28 - kShift)),
                                 _mm256_set1_ps(-0.0f));
    return _mm256_xor_ps(magnitude, sign);
  }
  static I LoadBytes(const std::byte* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static F ScaleE4M3(const std::byte* p) {
    const F two_to_120 = _mm256_castsi256_ps(_mm256_set1_epi32(247 << 23));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(LoadBytes(p), 20)), two_to_120);
  }
  static F ScaleE8M0(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(LoadBytes(p), 23));
  }
  static F ScaleBF16(const std::byte* p) { return BF16Low(_mm256_cvtepu16_epi32(LoadH(p))); }

  static F ScaleF16(const std::byte* p) { return _mm256_cvtph_ps(LoadH(p)); }
  template <int kShift, int j>
  static I SixBits(I nibbles, I high) {
    const I low = kShift == 0 ? nibbles : _mm256_srli_epi16(nibbles, 4);
    const I bits = j < 2 ? _mm256_slli_epi16(high, 4 - 2 * j) : _mm256_srli_epi16(high, 2 * j - 4);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(0x0F)),
                           _mm256_and_si256(bits, _mm256_set1_epi8(0x30)));
  }
  template <int kAdd>
  static I AddBytes(I v) {
    return _mm256_add_epi8(v, _mm256_set1_epi8(kAdd));
  }
  static I LowNibbles(I w) { return _mm256_and_si256(w, _mm256_set1_epi8(0x0F)); }
  static I HighNibbles(I w) { return LowNibbles(_mm256_srli_epi16(w, 4)); }
  static I BroadcastI(const int32_t* p) { return _mm256_set1_epi32(*p); }

  static I Fp4Table() {
    return _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14,
                            15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  }
  static I Fp4Low(I w) {
    return _mm256_shuffle_epi8(Fp4Table(), _mm256_and_si256(w, _mm256_set1_epi8(0x0F)));
  }
  static I Fp4High(I w) { return Fp4Low(_mm256_srli_epi16(w, 4)); }
  static I Broadcast4(const int8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, sizeof(v));
    return _mm256_set1_epi32(v);
  }
  static I DotFp4x16(const int32_t* init, const I (&w)[4], const int8_t* x) {
    // |pair| <= 2 * 24 * 127, so four of them stay within int16.
    const I a = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], Broadcast4(x)),
                                 _mm256_maddubs_epi16(w[1], Broadcast4(x + 4)));
    const I b = _mm256_add_epi16(_mm256_maddubs_epi16(w[2], Broadcast4(x + 8)),
                                 _mm256_maddubs_epi16(w[3], Broadcast4(x + 12)));
    const I sum = _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
    return _mm256_add_epi32(sum, _mm256_set1_epi32(*init));
  }
  static I DotQ8x32(const int32_t*, const std::byte* codes, const int8_t* x) {
    // Unsigned |w| times x with w's sign: a pair is at most 2 * 127 * 127, within int16. No offset
    // to correct.
    I sum = _mm256_setzero_si256();
    for (int k = 0; k < 8; ++k) {
      const I w =
          _mm256_xor_si256(LoadI(codes + k * 64), _mm256_set1_epi8(static_cast<char>(0x80)));
      const I pairs =
          _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(Broadcast4(x + 4 * k), w));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
  }
  static I DotNibbles32(const I (&w)[8], const int8_t* x) {
    // |pair| <= 2 * 15 * 127, so eight of them stay within int16.
    I sum = _mm256_maddubs_epi16(w[0], Broadcast4(x));
    for (int k = 1; k < 8; ++k)
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[k], Broadcast4(x + 4 * k)));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  }
  static I DotSix16(const int32_t* neg_fp4, const I (&w)[4], const int8_t* x) {
    const I once = _mm256_set1_epi32(*neg_fp4);
    I sum = _mm256_add_epi32(_mm256_add_epi32(once, once), once);
    for (int k = 0; k < 4; ++k) {  // |pair| <= 2 * 67 * 127: one stays within int16, two do not
      const I pairs = _mm256_maddubs_epi16(w[k], Broadcast4(x + 4 * k));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
  }
  static I AddI(I a, I b) { return _mm256_add_epi32(a, b); }
  static F ToFloat(I v) { return _mm256_cvtepi32_ps(v); }

  static float MaxAbs32(const float* x) {
    const I mask = _mm256_set1_epi32(0x7FFFFFFF);
    I max = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8)
      max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(LoadU(x + i)), mask));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
  }
  static int32_t Sum8(I v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
  }
  static void Quantize32(const float* x, float inverse, int8_t* q, int32_t (&sums)[2]) {
    const F inv = _mm256_set1_ps(inverse);
    I v[4];
    for (int k = 0; k < 4; ++k) v[k] = _mm256_cvtps_epi32(_mm256_mul_ps(LoadU(x + 8 * k), inv));
    sums[0] = Sum8(_mm256_add_epi32(v[0], v[1]));
    sums[1] = Sum8(_mm256_add_epi32(v[2], v[3]));
    const I bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs work per 128-bit half
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
  }
};

}  // namespace
}  // namespace carpool

#include "quant/panel_kernels-inl.h"

namespace carpool {
const KernelSet* Avx2Kernels() {
  static constexpr KernelSet kSet = MakeKernelSet(Isa::kAvx2);
  return &kSet;
}
}  // namespace carpool
#else
namespace carpool {
const KernelSet* Avx2Kernels() { return nullptr; }
}  // namespace carpool
#endif
