// This file finds out which instruction sets this machine has.
#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/linear/linear.h"

namespace fidelio {

namespace cpu {
namespace {

// __builtin_cpu_supports asks CPUID and, through XGETBV, whether the operating system saves the registers. A CPU with
// AVX-512 but without VBMI, VNNI or BF16 (Skylake-X to Ice Lake) counts as avx2, because there are no kernels for it.
bool has_avx2() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's builtin does not know F16C, which is bit 29 of ECX of leaf 1
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29)) != 0;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
#else
  return false;
#endif
}
bool has_avx512() {
#if defined(__x86_64__)
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// Tells whether the machine has AMX, by TILE and INT8 in EDX of CPUID leaf 7. Since version 5.16 Linux keeps tiles
// only for processes that ask for them. The answer holds for all threads.
bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  // These are ARCH_REQ_XCOMP_PERM of arch_prctl and XFEATURE_XTILEDATA.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool there = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (1u << 24)) != 0 && (d & (1u << 25)) != 0;
  return has_avx512() && there && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

std::string_view name_of(Isa isa) {
  constexpr std::string_view kNames[] = {"portable", "avx2", "avx512", "amx"};
  return kNames[static_cast<size_t>(isa)];
}

Isa parse_isa(std::string_view name) {
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::amx})
    if (name == name_of(isa)) return isa;
  throw Error("unknown instruction set '{}': use portable, avx2, avx512 or amx", name);
}

std::span<const Isa> supported_isas() {
  static constexpr Isa kAll[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::amx};
  static const size_t count = has_amx() ? 4 : has_avx512() ? 3 : has_avx2() ? 2 : 1;
  return {kAll, count};
}

}  // namespace cpu
}  // namespace fidelio
