// What this CPU can do, and which kernel variant that makes available.
#pragma once

#include <string_view>

namespace carpool {

/// Kernel variants, slowest first. All give the same bits (quant/panel_kernels.h), so the choice is
/// one of speed only.
enum class Isa { kScalar, kNeon, kAvx2, kAvx512 };

/// "scalar", "neon", "avx2", "avx512".
std::string_view IsaName(Isa isa);

/// kAvx2 means AVX2 + FMA + F16C (every AVX2 CPU has it); kAvx512 means F, BW, DQ, VL, VNNI and
/// VBMI (Ice Lake, Zen 4 and later); kNeon means the dot-product instructions (Armv8.2 servers).
bool CpuSupports(Isa isa);

/// The best variant this CPU supports, or the one CARPOOL_ISA names if it is supported; an unusable
/// value is warned about once and ignored.
Isa ChooseIsa();

}  // namespace carpool
