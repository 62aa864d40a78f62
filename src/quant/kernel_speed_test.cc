// Guards the NVFP4 kernel's speed against a frozen one in the same run: the same arithmetic for one
// and four rows, written out by hand. Both read a panel that lies in L2 and take turns; the best of
// many short runs counts, so that the load of the machine hardly matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/aligned.h"
#include "quant/packed_matrix.h"
#include "quant/random_matrix.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace carpool {
namespace {

constexpr size_t kCols = 2048, kRows = 64;

#define FROZEN_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma")))

template <int M>
FROZEN_AVX512 void FrozenAvx512(const PanelCall& call) {
  const auto* x = static_cast<const Q8Block* const*>(call.x);
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512 two_to_120 = _mm512_castsi512_ps(_mm512_set1_epi32(247 << 23));
  for (size_t p = 0; p < call.num_panels; ++p) {
    const std::byte* panel = call.panels + p * call.panel_bytes;
    __m512 acc[M];
    for (auto& a : acc) a = _mm512_setzero_ps();
    for (size_t b = 0; b < call.blocks; ++b) {
      const std::byte* header = panel + b / 2 * 576;
      const std::byte* codes = header + 64 + b % 2 * 256;
      __m512 partial[M];
      for (auto& v : partial) v = _mm512_setzero_ps();
      for (size_t half = 0; half < 2; ++half) {
        const __m512i w0 = _mm512_loadu_si512(codes + half * 128);
        const __m512i w1 = _mm512_loadu_si512(codes + half * 128 + 64);
        const __m512i w[4] = {_mm512_permutexvar_epi8(w0, table),
                              _mm512_permutexvar_epi8(_mm512_srli_epi16(w0, 4), table),
                              _mm512_permutexvar_epi8(w1, table),
                              _mm512_permutexvar_epi8(_mm512_srli_epi16(w1, 4), table)};
        const __m128i e4m3 =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(header + (b % 2 * 2 + half) * 16));
        const __m512 scale = _mm512_mul_ps(
            _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(e4m3), 20)), two_to_120);
        for (int m = 0; m < M; ++m) {
          __m512i sum = _mm512_set1_epi32(x[m][b].neg_fp4[half]);
          for (int k = 0; k < 4; ++k) {
            int32_t four;
            __builtin_memcpy(&four, x[m][b].q + 16 * half + static_cast<size_t>(4 * k), 4);
            sum = _mm512_dpbusd_epi32(sum, w[k], _mm512_set1_epi32(four));
          }
          partial[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, partial[m]);
        }
      }
      for (int m = 0; m < M; ++m)
        acc[m] = _mm512_fmadd_ps(partial[m], _mm512_set1_ps(x[m][b].scale), acc[m]);
    }
    for (int m = 0; m < M; ++m) {
      _mm512_storeu_ps(call.y + static_cast<size_t>(m) * call.y_stride + p * kPanelRows,
                       _mm512_mul_ps(acc[m], _mm512_set1_ps(call.out_scale)));
    }
  }
}

#define FROZEN_AVX2 __attribute__((target("avx2,fma")))

template <int M>
FROZEN_AVX2 void FrozenAvx2(const PanelCall& call) {
  const auto* x = static_cast<const Q8Block* const*>(call.x);
  const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
                                         12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m256 two_to_120 = _mm256_castsi256_ps(_mm256_set1_epi32(247 << 23));
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  for (size_t p = 0; p < call.num_panels; ++p) {
    for (size_t lane = 0; lane < kPanelRows; lane += 8) {
      const std::byte* panel = call.panels + p * call.panel_bytes;
      __m256 acc[M];
      for (auto& a : acc) a = _mm256_setzero_ps();
      for (size_t b = 0; b < call.blocks; ++b) {
        const std::byte* header = panel + b / 2 * 576;
        const std::byte* codes = header + 64 + b % 2 * 256 + lane * 4;
        __m256 partial[M];
        for (auto& v : partial) v = _mm256_setzero_ps();
        for (size_t half = 0; half < 2; ++half) {
          const auto load = [&](size_t at) FROZEN_AVX2 {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
          };
          const __m256i w0 = load(half * 128), w1 = load(half * 128 + 64);
          const auto decode = [&](__m256i v) FROZEN_AVX2 {
            return _mm256_shuffle_epi8(table, _mm256_and_si256(v, low));
          };
          const __m256i w[4] = {decode(w0), decode(_mm256_srli_epi16(w0, 4)), decode(w1),
                                decode(_mm256_srli_epi16(w1, 4))};
          const __m128i e4m3 = _mm_loadl_epi64(
              reinterpret_cast<const __m128i*>(header + (b % 2 * 2 + half) * 16 + lane));
          const __m256 scale = _mm256_mul_ps(
              _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(e4m3), 20)), two_to_120);
          for (int m = 0; m < M; ++m) {
            __m256i pairs = _mm256_setzero_si256();
            for (int k = 0; k < 4; ++k) {
              int32_t four;
              __builtin_memcpy(&four, x[m][b].q + 16 * half + static_cast<size_t>(4 * k), 4);
              pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[k], _mm256_set1_epi32(four)));
            }
            const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(pairs, ones),
                                                 _mm256_set1_epi32(x[m][b].neg_fp4[half]));
            partial[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, partial[m]);
          }
        }
        for (int m = 0; m < M; ++m)
          acc[m] = _mm256_fmadd_ps(partial[m], _mm256_set1_ps(x[m][b].scale), acc[m]);
      }
      for (int m = 0; m < M; ++m) {
        _mm256_storeu_ps(call.y + static_cast<size_t>(m) * call.y_stride + p * kPanelRows + lane,
                         _mm256_mul_ps(acc[m], _mm256_set1_ps(call.out_scale)));
      }
    }
  }
}

TEST(KernelSpeed, NVFP4IsNoSlowerThanTheFrozenKernel) {
  constexpr double kSlower = 1.2;
  const OwnedMatrix source = RandomMatrix(WeightFormat::kNVFP4, kRows, kCols, 1);
  auto w = PackedMatrix::Pack(source.view);
  ASSERT_TRUE(w.has_value());
  AlignedBuffer<float> values(4 * kCols), y(4 * kRows), frozen_y(4 * kRows);
  AlignedBuffer<Q8Block> blocks(4 * kCols / kBlockInputs);
  std::vector<const Q8Block*> rows;
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < kCols; ++i)
      values[r * kCols + i] = static_cast<float>((i * 7 + r) % 19) - 9.0f;
    rows.push_back(&blocks[r * kCols / kBlockInputs]);
    ScalarKernels()->quantize(&values[r * kCols], kCols, &blocks[r * kCols / kBlockInputs]);
  }
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const KernelSet* kernels = KernelsFor(isa);
    if (kernels == nullptr) continue;
    const PanelFn kernel = kernels->q8[static_cast<size_t>(WeightFormat::kNVFP4)];
    for (const size_t m : {size_t{1}, size_t{4}}) {
      const PanelFn frozen = isa == Isa::kAvx2 ? (m == 1 ? FrozenAvx2<1> : FrozenAvx2<4>)
                                               : (m == 1 ? FrozenAvx512<1> : FrozenAvx512<4>);
      PanelCall call = w->Call(0, w->num_panels(), true);
      call.x = rows.data();
      call.rows = m;
      call.y_stride = kRows;
      const auto time = [&](PanelFn fn, float* out) {
        call.y = out;
        const auto start = std::chrono::steady_clock::now();
        fn(call);
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count();
      };
      double best = 1e9, best_frozen = 1e9;
      for (int i = 0; i < 2000; ++i) {
        best = std::min(best, time(kernel, y.data()));
        best_frozen = std::min(best_frozen, time(frozen, frozen_y.data()));
      }
      for (size_t i = 0; i < m * kRows; ++i) ASSERT_EQ(y[i], frozen_y[i]) << "not the same work";
      std::printf("%s, %zu rows: %.2f us, frozen %.2f us\n", IsaName(isa).data(), m, best,
                  best_frozen);
      EXPECT_LT(best, kSlower * best_frozen) << IsaName(isa) << " " << m << " rows";
    }
  }
}

}  // namespace
}  // namespace carpool
#endif
