// Chooses the kernel variant and checks it against the scalar twin before it is used: code that
// could not be run where it was written (another CPU, another compiler) is caught on the first
// start, not in somebody's results.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/aligned.h"
#include "base/log.h"
#include "quant/panel_kernels.h"

namespace carpool {
namespace {

/// The same bits, except that any NaN equals any NaN.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
      return false;
  }
  return true;
}

/// A few random blocks through both kernels: every row count up to one past the variant's register
/// block.
class SelfCheck {
 public:
  SelfCheck() : panels_(2 * kPanelBytes), x_(kRows * kInputs), blocks_(kRows * kBlocks) {
    uint32_t state = 1;
    const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
    // 0x30...0x6F in every byte: a positive normal number of moderate size as f32, bf16, e4m3 and
    // e8m0 alike.
    for (size_t i = 0; i < panels_.size(); ++i)
      panels_[i] = static_cast<std::byte>(0x30 + next() % 0x10);
    for (size_t i = 0; i < x_.size(); ++i)
      x_[i] = static_cast<float>(static_cast<int>(next() % 2001) - 1000) / 1000.0f;
    for (size_t r = 0; r < kRows; ++r) {
      f32_rows_.push_back(&x_[r * kInputs]);
      q8_rows_.push_back(&blocks_[r * kBlocks]);
      ScalarKernels()->quantize(f32_rows_[r], kInputs, &blocks_[r * kBlocks]);
    }
  }

  bool Equal(PanelFn a, PanelFn b, bool q8) const {
    for (size_t rows = 1; rows <= kRows; rows = rows * 3) {
      std::vector<float> ya(rows * 2 * kPanelRows), yb(ya.size());
      PanelCall call{panels_.data(),
                     2,
                     kPanelBytes,
                     kBlocks,
                     2,
                     0.75f,
                     q8 ? static_cast<const void*>(q8_rows_.data())
                        : static_cast<const void*>(f32_rows_.data()),
                     rows,
                     ya.data(),
                     2 * kPanelRows,
                     nullptr};
      a(call);
      call.y = yb.data();
      b(call);
      if (!SameBits(ya, yb)) return false;
    }
    return true;
  }

  bool ElementwiseEqual(const KernelSet& a, const KernelSet& b) const {
    std::vector<float> ya(kInputs), yb(kInputs);
    a.swiglu(f32_rows_[0], f32_rows_[1], kInputs, ya.data());
    b.swiglu(f32_rows_[0], f32_rows_[1], kInputs, yb.data());
    if (!SameBits(ya, yb)) return false;
    a.combine(f32_rows_.data(), f32_rows_[3], 3, f32_rows_[4], kInputs, ya.data());
    b.combine(f32_rows_.data(), f32_rows_[3], 3, f32_rows_[4], kInputs, yb.data());
    if (!SameBits(ya, yb)) return false;
    Q8Block qa[kBlocks], qb[kBlocks];
    a.quantize(f32_rows_[2], kInputs - 5, qa);
    b.quantize(f32_rows_[2], kInputs - 5, qb);
    return std::memcmp(qa, qb, sizeof(qa)) == 0;
  }

 private:
  static constexpr size_t kBlocks = 3, kInputs = kBlocks * kBlockInputs, kRows = 9;
  static constexpr size_t kPanelBytes =
      2 * 64 + kBlocks * kBlockInputs * kPanelRows * sizeof(float);
  AlignedBuffer<std::byte> panels_;
  AlignedBuffer<float> x_;
  AlignedBuffer<Q8Block> blocks_;
  std::vector<const float*> f32_rows_;
  std::vector<const Q8Block*> q8_rows_;
};

KernelSet ChooseAndCheck() {
  const KernelSet& scalar = *ScalarKernels();
  const KernelSet* chosen = KernelsFor(ChooseIsa());
  if (chosen == nullptr || chosen == &scalar) return scalar;
  KernelSet set = *chosen;
  const SelfCheck check;
  size_t replaced = 0;
  for (size_t f = 0; f < kNumWeightFormats; ++f) {
    if (!check.Equal(set.f32[f], scalar.f32[f], false)) set.f32[f] = scalar.f32[f], ++replaced;
    if (set.q8[f] != nullptr && !check.Equal(set.q8[f], scalar.q8[f], true))
      set.q8[f] = scalar.q8[f], ++replaced;
  }
  if (!check.ElementwiseEqual(set, scalar)) {
    set.quantize = scalar.quantize;
    set.swiglu = scalar.swiglu;
    set.combine = scalar.combine;
    ++replaced;
  }
  if (replaced > 0) {
    LogWarning(
        "{} of the {} kernels differ from their scalar twins on this machine; using the twins "
        "(slow). Please report.",
        replaced, IsaName(set.isa));
  }
  return set;
}

}  // namespace

const KernelSet* KernelsFor(Isa isa) {
  if (!CpuSupports(isa)) return nullptr;
  switch (isa) {
    case Isa::kScalar:
      return ScalarKernels();
    case Isa::kNeon:
      return NeonKernels();
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kAvx512:
      return Avx512Kernels();
  }
  return nullptr;
}

const KernelSet& Kernels() {
  static const KernelSet set = ChooseAndCheck();
  return set;
}

}  // namespace carpool
