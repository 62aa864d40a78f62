// The panel kernels' algorithms, once for all variants. Included by kernels_*.cc after each has
// defined `struct Vec`.
//
// Everything here has internal linkage: these files are compiled with flags of their own (-mavx512f
// ...), and a shared inline function compiled that way could be picked by the linker for every CPU.
//
// struct Vec: kLanes (divides 16), kMaxRows; F = kLanes floats, I = kLanes 32-bit words, H = kLanes
// 16-bit words; static functions as used below. Lanes are output rows. See kernels_scalar.cc for
// the readable one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/panel_kernels.h"

#define CARPOOL_INLINE inline __attribute__((always_inline))

namespace carpool {
namespace {

using F = Vec::F;
using I = Vec::I;

// DRAM latency is about 100 ns; at 10 GB/s per core that is 1 KB in flight, and twice that hides
// the jitter.
constexpr size_t kPrefetchBytes = 2048;
constexpr size_t kHeaderBytes = 64;

/// Prefetches a fixed distance ahead of the reader, across the jump from the end of a call's panels
/// to what is next.
struct Prefetcher {
  explicit Prefetcher(const PanelCall& call)
      : end(call.panels + call.num_panels * call.panel_bytes),
        jump(call.next == nullptr ? 0 : call.next - end) {}
  template <size_t kBytes>
  CARPOOL_INLINE void Ahead(const std::byte* p) const {
    const std::byte* ahead = p + kPrefetchBytes;
    ahead += ahead >= end ? jump : 0;
    for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + i, 0, 3);
  }
  const std::byte* end;
  ptrdiff_t jump;
};

// ---- fp32 activations: a Format's Block adds one 32-block to acc[M].
// ----------------------------------------------------

template <int M>
CARPOOL_INLINE void Accumulate(F (&chain)[M], const float* const* x, size_t i, F w) {
  for (int m = 0; m < M; ++m) chain[m] = Vec::Fma(Vec::Broadcast(x[m] + i), w, chain[m]);
}
template <int M>
CARPOOL_INLINE void SetZero(F (&chain)[M]) {
  for (int m = 0; m < M; ++m) chain[m] = Vec::Zero();
}

template <int M>
CARPOOL_INLINE void AddBlock(const F (&even)[M], const F (&odd)[M], F (&acc)[M]) {
  for (int m = 0; m < M; ++m) acc[m] = Vec::Add(acc[m], Vec::Add(even[m], odd[m]));
}
template <int M>
CARPOOL_INLINE void AddScaledBlock(const F (&even)[M], const F (&odd)[M], F scale, F (&acc)[M]) {
  for (int m = 0; m < M; ++m) acc[m] = Vec::Fma(Vec::Add(even[m], odd[m]), scale, acc[m]);
}

struct F32Format {
  static constexpr size_t kHeader = 0, kBlockBytes = 32 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte*, size_t, const std::byte* codes, size_t lane,
                                   const float* const* x, size_t i, F (&acc)[M]) {
    F even[M], odd[M];
    SetZero(even);
    SetZero(odd);
    for (size_t k = 0; k < 32; k += 2) {
      Accumulate(even, x, i + k, Vec::LoadF(codes + k * 64 + lane * 4));
      Accumulate(odd, x, i + k + 1, Vec::LoadF(codes + (k + 1) * 64 + lane * 4));
    }
    AddBlock(even, odd, acc);
  }
};

struct BF16Format {
  static constexpr size_t kHeader = 0, kBlockBytes = 16 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte*, size_t, const std::byte* codes, size_t lane,
                                   const float* const* x, size_t i, F (&acc)[M]) {
    F even[M], odd[M];
    SetZero(even);
    SetZero(odd);
    for (size_t k = 0; k < 16; ++k) {
      const I w = Vec::LoadI(codes + k * 64 + lane * 4);
      Accumulate(even, x, i + 2 * k, Vec::BF16Low(w));
      Accumulate(odd, x, i + 2 * k + 1, Vec::BF16High(w));
    }
    AddBlock(even, odd, acc);
  }
};

struct FP8Format {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 16 * 32;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t, const std::byte* codes,
                                   size_t lane, const float* const* x, size_t i, F (&acc)[M]) {
    F even[M], odd[M];
    SetZero(even);
    SetZero(odd);
    for (size_t k = 0; k < 16; ++k) {
      const Vec::H w = Vec::LoadH(codes + k * 32 + lane * 2);
      Accumulate(even, x, i + 2 * k, Vec::E4M3LowOver256(w));
      Accumulate(odd, x, i + 2 * k + 1, Vec::E4M3HighOver256(w));
    }
    AddScaledBlock(even, odd, Vec::LoadF(header + lane * 4), acc);
  }
};

struct Q8Format {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 8 * 64;
  static CARPOOL_INLINE F Scale(const std::byte* header, size_t block, size_t lane) {
    return Vec::ScaleBF16(header + block * 32 + lane * 2);
  }
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t block, const std::byte* codes,
                                   size_t lane, const float* const* x, size_t i, F (&acc)[M]) {
    F even[M], odd[M];
    SetZero(even);
    SetZero(odd);
    for (size_t k = 0; k < 8; ++k) {
      const I w = Vec::LoadI(codes + k * 64 + lane * 4);
      Accumulate(even, x, i + 4 * k, Vec::template BitsValue<0, 0xFF, kQ8Offset>(w));
      Accumulate(odd, x, i + 4 * k + 1, Vec::template BitsValue<8, 0xFF, kQ8Offset>(w));
      Accumulate(even, x, i + 4 * k + 2, Vec::template BitsValue<16, 0xFF, kQ8Offset>(w));
      Accumulate(odd, x, i + 4 * k + 3, Vec::template BitsValue<24, 0xFF, kQ8Offset>(w));
    }
    AddScaledBlock(even, odd, Scale(header, block, lane), acc);
  }
};

/// Eight inputs of 16 rows; input k < 4 is the low nibble of byte k, input 4 + k the high one.
template <int M>
CARPOOL_INLINE void Fp4Word(I w, const float* const* x, size_t i, F (&even)[M], F (&odd)[M]) {
  Accumulate(even, x, i + 0, Vec::template Fp4Value<0>(w));
  Accumulate(odd, x, i + 1, Vec::template Fp4Value<8>(w));
  Accumulate(even, x, i + 2, Vec::template Fp4Value<16>(w));
  Accumulate(odd, x, i + 3, Vec::template Fp4Value<24>(w));
  Accumulate(even, x, i + 4, Vec::template Fp4Value<4>(w));
  Accumulate(odd, x, i + 5, Vec::template Fp4Value<12>(w));
  Accumulate(even, x, i + 6, Vec::template Fp4Value<20>(w));
  Accumulate(odd, x, i + 7, Vec::template Fp4Value<28>(w));
}

struct NVFP4Format {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 4 * 64;
  static CARPOOL_INLINE F Scale(const std::byte* header, size_t half_block, size_t lane) {
    return Vec::ScaleE4M3(header + half_block * 16 + lane);
  }
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t block, const std::byte* codes,
                                   size_t lane, const float* const* x, size_t i, F (&acc)[M]) {
    for (size_t half = 0; half < 2; ++half) {
      F even[M], odd[M];
      SetZero(even);
      SetZero(odd);
      for (size_t k = 2 * half; k < 2 * half + 2; ++k) {
        Fp4Word(Vec::LoadI(codes + k * 64 + lane * 4), x, i + 8 * k, even, odd);
      }
      AddScaledBlock(even, odd, Scale(header, 2 * block + half, lane), acc);
    }
  }
};

struct MXFP4Format {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 4 * 64;
  static CARPOOL_INLINE F Scale(const std::byte* header, size_t block, size_t lane) {
    return Vec::ScaleE8M0(header + block * 16 + lane);
  }
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t block, const std::byte* codes,
                                   size_t lane, const float* const* x, size_t i, F (&acc)[M]) {
    F even[M], odd[M];
    SetZero(even);
    SetZero(odd);
    for (size_t k = 0; k < 4; ++k)
      Fp4Word(Vec::LoadI(codes + k * 64 + lane * 4), x, i + 8 * k, even, odd);
    AddScaledBlock(even, odd, Scale(header, block, lane), acc);
  }
};

struct Q4Format {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 4 * 64;
  static CARPOOL_INLINE F Scale(const std::byte* header, size_t lane) {
    return Vec::ScaleF16(header + lane * 2);
  }
  static CARPOOL_INLINE F Minimum(const std::byte* header, size_t lane) {
    return Vec::ScaleF16(header + 32 + lane * 2);
  }
  template <int kShift, int M>
  static CARPOOL_INLINE void Input(I w, F scale, F minimum, const float* const* x, size_t i,
                                   F (&chain)[M]) {
    Accumulate(chain, x, i, Vec::Fma(Vec::template BitsValue<kShift, 0x0F, 0>(w), scale, minimum));
  }
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t, const std::byte* codes,
                                   size_t lane, const float* const* x, size_t i, F (&acc)[M]) {
    const F s = Scale(header, lane), m = Minimum(header, lane);
    F even[M], odd[M];
    SetZero(even);
    SetZero(odd);
    for (size_t k = 0; k < 4; ++k, i += 8) {
      const I w = Vec::LoadI(codes + k * 64 + lane * 4);
      Input<0>(w, s, m, x, i + 0, even);
      Input<8>(w, s, m, x, i + 1, odd);
      Input<16>(w, s, m, x, i + 2, even);
      Input<24>(w, s, m, x, i + 3, odd);
      Input<4>(w, s, m, x, i + 4, even);
      Input<12>(w, s, m, x, i + 5, odd);
      Input<20>(w, s, m, x, i + 6, even);
      Input<28>(w, s, m, x, i + 7, odd);
    }
    AddBlock(even, odd, acc);
  }
};

struct Q6Format {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 6 * 64;
  static CARPOOL_INLINE F Scale(const std::byte* header, size_t half, size_t lane) {
    return Vec::ScaleF16(header + half * 32 + lane * 2);
  }
  /// Inputs 16 * half + 4 j + b as byte b of w[j], codes 0 ... 63.
  static CARPOOL_INLINE void Codes(const std::byte* codes, size_t half, size_t lane, I (&w)[4]) {
    const I w0 = Vec::LoadI(codes + half * 128 + lane * 4),
            w1 = Vec::LoadI(codes + half * 128 + 64 + lane * 4),
            high = Vec::LoadI(codes + 256 + half * 64 + lane * 4);
    w[0] = Vec::template SixBits<0, 0>(w0, high);
    w[1] = Vec::template SixBits<4, 1>(w0, high);
    w[2] = Vec::template SixBits<0, 2>(w1, high);
    w[3] = Vec::template SixBits<4, 3>(w1, high);
  }
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t, const std::byte* codes,
                                   size_t lane, const float* const* x, size_t i, F (&acc)[M]) {
    for (size_t half = 0; half < 2; ++half) {
      I w[4];
      Codes(codes, half, lane, w);
      F even[M], odd[M];
      SetZero(even);
      SetZero(odd);
      for (size_t j = 0; j < 4; ++j, i += 4) {
        Accumulate(even, x, i, Vec::template BitsValue<0, 0xFF, kQ6Offset>(w[j]));
        Accumulate(odd, x, i + 1, Vec::template BitsValue<8, 0xFF, kQ6Offset>(w[j]));
        Accumulate(even, x, i + 2, Vec::template BitsValue<16, 0xFF, kQ6Offset>(w[j]));
        Accumulate(odd, x, i + 3, Vec::template BitsValue<24, 0xFF, kQ6Offset>(w[j]));
      }
      AddScaledBlock(even, odd, Scale(header, half, lane), acc);
    }
  }
};

// ---- int8 activations
// -------------------------------------------------------------------------------------------------

struct NVFP4Int8 {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 4 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t block, const std::byte* codes,
                                   size_t lane, const Q8Block* const* x, size_t b, F (&acc)[M]) {
    F partial[M];
    SetZero(partial);
    for (size_t half = 0; half < 2; ++half) {
      const I w0 = Vec::LoadI(codes + half * 128 + lane * 4),
              w1 = Vec::LoadI(codes + half * 128 + 64 + lane * 4);
      const I w[4] = {Vec::Fp4Low(w0), Vec::Fp4High(w0), Vec::Fp4Low(w1), Vec::Fp4High(w1)};
      const F scale = NVFP4Format::Scale(header, 2 * block + half, lane);
      for (int m = 0; m < M; ++m) {
        const F dot =
            Vec::ToFloat(Vec::DotFp4x16(x[m][b].neg_fp4 + half, w, x[m][b].q + 16 * half));
        partial[m] = Vec::Fma(dot, scale, partial[m]);
      }
    }
    for (int m = 0; m < M; ++m)
      acc[m] = Vec::Fma(partial[m], Vec::Broadcast(&x[m][b].scale), acc[m]);
  }
};

struct MXFP4Int8 {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 4 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t block, const std::byte* codes,
                                   size_t lane, const Q8Block* const* x, size_t b, F (&acc)[M]) {
    const F scale = MXFP4Format::Scale(header, block, lane);
    I dot[M] = {};
    for (size_t half = 0; half < 2; ++half) {
      const I w0 = Vec::LoadI(codes + half * 128 + lane * 4),
              w1 = Vec::LoadI(codes + half * 128 + 64 + lane * 4);
      const I w[4] = {Vec::Fp4Low(w0), Vec::Fp4High(w0), Vec::Fp4Low(w1), Vec::Fp4High(w1)};
      for (int m = 0; m < M; ++m) {
        const I d = Vec::DotFp4x16(x[m][b].neg_fp4 + half, w, x[m][b].q + 16 * half);
        dot[m] = Vec::AddI(dot[m], d);
      }
    }
    for (int m = 0; m < M; ++m) {
      acc[m] =
          Vec::Fma(Vec::Mul(Vec::ToFloat(dot[m]), scale), Vec::Broadcast(&x[m][b].scale), acc[m]);
    }
  }
};

struct Q8Int8 {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 8 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t block, const std::byte* codes,
                                   size_t lane, const Q8Block* const* x, size_t b, F (&acc)[M]) {
    const F scale = Q8Format::Scale(header, block, lane);
    for (int m = 0; m < M; ++m) {
      const F dot = Vec::ToFloat(Vec::DotQ8x32(&x[m][b].neg_q8, codes + lane * 4, x[m][b].q));
      acc[m] = Vec::Fma(Vec::Mul(dot, scale), Vec::Broadcast(&x[m][b].scale), acc[m]);
    }
  }
};

struct Q4Int8 {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 4 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t, const std::byte* codes,
                                   size_t lane, const Q8Block* const* x, size_t b, F (&acc)[M]) {
    constexpr float kPerSum = -1.0f / static_cast<float>(kQ8Offset);  // neg_q8 is -128 * sum
    const F scale = Q4Format::Scale(header, lane),
            minimum = Vec::Mul(Q4Format::Minimum(header, lane), Vec::Broadcast(&kPerSum));
    I w[8];
    for (size_t k = 0; k < 4; ++k) {
      const I word = Vec::LoadI(codes + k * 64 + lane * 4);
      w[2 * k] = Vec::LowNibbles(word);
      w[2 * k + 1] = Vec::HighNibbles(word);
    }
    for (int m = 0; m < M; ++m) {
      const F dot = Vec::ToFloat(Vec::DotNibbles32(w, x[m][b].q)),
              sum = Vec::ToFloat(Vec::BroadcastI(&x[m][b].neg_q8));
      const F term = Vec::Fma(sum, minimum, Vec::Mul(dot, scale));
      acc[m] = Vec::Fma(term, Vec::Broadcast(&x[m][b].scale), acc[m]);
    }
  }
};

struct Q6Int8 {
  static constexpr size_t kHeader = kHeaderBytes, kBlockBytes = 6 * 64;
  template <int M>
  static CARPOOL_INLINE void Block(const std::byte* header, size_t, const std::byte* codes,
                                   size_t lane, const Q8Block* const* x, size_t b, F (&acc)[M]) {
    F partial[M];
    SetZero(partial);
    for (size_t half = 0; half < 2; ++half) {
      I w[4];
      Q6Format::Codes(codes, half, lane, w);
      for (auto& v : w) v = Vec::template AddBytes<kQ6Int8Offset - kQ6Offset>(v);
      const F scale = Q6Format::Scale(header, half, lane);
      for (int m = 0; m < M; ++m) {
        const F dot = Vec::ToFloat(Vec::DotSix16(x[m][b].neg_fp4 + half, w, x[m][b].q + 16 * half));
        partial[m] = Vec::Fma(dot, scale, partial[m]);
      }
    }
    for (int m = 0; m < M; ++m)
      acc[m] = Vec::Fma(partial[m], Vec::Broadcast(&x[m][b].scale), acc[m]);
  }
};

// ---- loops
// ------------------------------------------------------------------------------------------------------------

/// M rows, one panel. Index of the block is in inputs for fp32 rows (kStep 32) and in blocks for
/// int8 rows (kStep 1).
template <typename Format, typename Row, size_t kStep, int M>
void PanelRows(const PanelCall& call, const Prefetcher& prefetch, const std::byte* panel,
               const Row* x, float* y) {
  for (size_t lane = 0; lane < kPanelRows; lane += Vec::kLanes) {
    F acc[M];
    SetZero(acc);
    const std::byte* p = panel;
    for (size_t b = 0; b < call.blocks;) {
      const std::byte* header = p;
      if constexpr (Format::kHeader != 0) {
        if (lane == 0) prefetch.Ahead<Format::kHeader>(p);
        p += Format::kHeader;
      }
      const size_t in_super =
          call.blocks - b < call.super_blocks ? call.blocks - b : call.super_blocks;
      for (size_t j = 0; j < in_super; ++j, ++b) {
        if (lane == 0) prefetch.Ahead<Format::kBlockBytes>(p);
        Format::template Block<M>(header, j, p, lane, x, b * kStep, acc);
        p += Format::kBlockBytes;
      }
    }
    const F out_scale = Vec::Broadcast(&call.out_scale);
    for (int m = 0; m < M; ++m) {
      Vec::Store(y + static_cast<size_t>(m) * call.y_stride + lane, Vec::Mul(acc[m], out_scale));
    }
  }
}

template <typename Format, typename Row, size_t kStep, int M>
CARPOOL_INLINE void Remainder(const PanelCall& call, const Prefetcher& prefetch,
                              const std::byte* panel, const Row* x, size_t rows, float* y) {
  if constexpr (M > 0) {
    if (rows == M) return PanelRows<Format, Row, kStep, M>(call, prefetch, panel, x, y);
    Remainder<Format, Row, kStep, M - 1>(call, prefetch, panel, x, rows, y);
  }
}

template <typename Format, typename Row, size_t kStep>
void Panels(const PanelCall& call) {
  const auto* x = static_cast<const Row*>(call.x);
  const Prefetcher prefetch(call);
  for (size_t p = 0; p < call.num_panels; ++p) {
    const std::byte* panel = call.panels + p * call.panel_bytes;
    float* y = call.y + p * kPanelRows;
    size_t r = 0;
    for (; r + Vec::kMaxRows <= call.rows; r += Vec::kMaxRows) {
      PanelRows<Format, Row, kStep, Vec::kMaxRows>(call, prefetch, panel, x + r,
                                                   y + r * call.y_stride);
    }
    Remainder<Format, Row, kStep, Vec::kMaxRows - 1>(call, prefetch, panel, x + r, call.rows - r,
                                                     y + r * call.y_stride);
  }
}

template <typename Format>
constexpr PanelFn kF32Panels = Panels<Format, const float*, kBlockInputs>;
template <typename Format>
constexpr PanelFn kInt8Panels = Panels<Format, const Q8Block*, 1>;

// ---- element-wise
// -----------------------------------------------------------------------------------------------------

/// exp by 2^n * p(r), |r| <= ln2 / 2; clamped so that the result is a normal number; NaN stays NaN.
/// Within 2 ulp.
CARPOOL_INLINE F Exp(F x) {
  const auto set = [](const float& v) __attribute__((always_inline)) { return Vec::Broadcast(&v); };
  x = Vec::Min(set(88.0f), Vec::Max(set(-87.0f), x));
  const F n = Vec::Round(Vec::Mul(x, set(1.44269504f)));
  F r = Vec::Fma(n, set(-0.693359375f), x);
  r = Vec::Fma(n, set(2.12194440e-4f), r);
  F p = set(1.9875691500e-4f);
  p = Vec::Fma(p, r, set(1.3981999507e-3f));
  p = Vec::Fma(p, r, set(8.3334519073e-3f));
  p = Vec::Fma(p, r, set(4.1665795894e-2f));
  p = Vec::Fma(p, r, set(1.6666665459e-1f));
  p = Vec::Fma(p, r, set(5.0000001201e-1f));
  p = Vec::Fma(p, Vec::Mul(r, r), Vec::Add(r, set(1.0f)));
  return Vec::ScaleByPowerOf2(p, n);
}

void SwiGlu(const float* gate, const float* up, size_t n, float* out) {
  const float one_value = 1.0f, minus_one_value = -1.0f;
  const F one = Vec::Broadcast(&one_value), minus_one = Vec::Broadcast(&minus_one_value);
  for (size_t i = 0; i < n; i += Vec::kLanes) {
    const F g = Vec::LoadU(gate + i);
    const F silu = Vec::Div(g, Vec::Add(one, Exp(Vec::Mul(g, minus_one))));
    Vec::Store(out + i, Vec::Mul(silu, Vec::LoadU(up + i)));
  }
}

void Combine(const float* const* terms, const float* weights, size_t num_terms, const float* last,
             size_t n, float* y) {
  for (size_t i = 0; i < n; i += Vec::kLanes) {
    F sum = Vec::Zero();
    for (size_t j = 0; j < num_terms; ++j)
      sum = Vec::Fma(Vec::Broadcast(weights + j), Vec::LoadU(terms[j] + i), sum);
    if (last != nullptr) sum = Vec::Add(sum, Vec::LoadU(last + i));
    Vec::Store(y + i, sum);
  }
}

/// q = round(x * (127 / max|x|)), ties to even. The sums are integers, so their order is free.
void Quantize(const float* x, size_t n, Q8Block* out) {
  for (size_t first = 0; first < n; first += kBlockInputs, ++out) {
    float padded[kBlockInputs];
    const float* block = x + first;
    if (n - first < kBlockInputs) {
      for (size_t i = 0; i < kBlockInputs; ++i) padded[i] = first + i < n ? block[i] : 0.0f;
      block = padded;
    }
    const float max = Vec::MaxAbs32(block);  // NaN if any is NaN
    const bool finite = max <= 3.40282347e38f;
    out->scale = finite ? max / 127.0f : __builtin_nanf("");
    // Below 1e-35 the reciprocal would overflow; such a block is zero for every purpose.
    const float inverse = finite && max > 1e-35f ? 127.0f / max : 0.0f;
    int32_t sums[2] = {0, 0};
    if (inverse == 0.0f) {
      for (auto& q : out->q) q = 0;
    } else {
      Vec::Quantize32(block, inverse, out->q, sums);
    }
    out->neg_fp4[0] = -kFp4Offset * sums[0];
    out->neg_fp4[1] = -kFp4Offset * sums[1];
    out->neg_q8 = -kQ8Offset * (sums[0] + sums[1]);
  }
}

/// In the order of WeightFormat.
constexpr KernelSet MakeKernelSet(Isa isa) {
  return KernelSet{isa,
                   {kF32Panels<F32Format>, kF32Panels<BF16Format>, kF32Panels<FP8Format>,
                    kF32Panels<Q8Format>, kF32Panels<NVFP4Format>, kF32Panels<MXFP4Format>,
                    kF32Panels<Q4Format>, kF32Panels<Q6Format>},
                   {nullptr, nullptr, nullptr, kInt8Panels<Q8Int8>, kInt8Panels<NVFP4Int8>,
                    kInt8Panels<MXFP4Int8>, kInt8Panels<Q4Int8>, kInt8Panels<Q6Int8>},
                   Quantize,
                   SwiGlu,
                   Combine};
}

}  // namespace
}  // namespace carpool
