#include "base/cpu_info.h"

#include <cstdlib>

#include "base/log.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace carpool {

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kNeon:
      return "neon";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

bool CpuSupports(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kNeon:
#if defined(__aarch64__)
      return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
      return false;
#endif
#if defined(__x86_64__)
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return CpuSupports(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512vbmi");
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
      return false;
#endif
  }
  return false;
}

Isa ChooseIsa() {
  constexpr Isa kBestFirst[] = {Isa::kAvx512, Isa::kAvx2, Isa::kNeon, Isa::kScalar};
  if (const char* wanted = std::getenv("CARPOOL_ISA"); wanted != nullptr && *wanted != '\0') {
    for (const Isa isa : kBestFirst) {
      if (IsaName(isa) == wanted && CpuSupports(isa)) return isa;
    }
    LogWarning(
        "CARPOOL_ISA={}: not a variant this CPU runs (known: scalar, neon, avx2, avx512); choosing "
        "the best",
        wanted);
  }
  for (const Isa isa : kBestFirst) {
    if (CpuSupports(isa)) return isa;
  }
  return Isa::kScalar;
}

}  // namespace carpool
