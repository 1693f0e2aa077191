#include "app/bench/probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "core/tensor.h"
#include "kernels/cpu/linear/tile_shapes.h"

namespace fidelio::app {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Eight chains make memory the limit of the loop, and not the additions. `words` is a multiple of 8.
uint64_t sum_of(const uint64_t* p, size_t words) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i < words; i += 8) {
    __builtin_prefetch(p + i + 1024);  // This is 8 KB ahead, as the hardware's own prefetchers stop at every page.
    for (size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

#if defined(__x86_64__)
constexpr int kTileRounds = 4000, kTileChains = 6;
// This takes 80 microseconds or more, so the time to wake the threads does not matter.
constexpr int kRounds = 40000, kChains = 8;

// Eight independent chains hide the latency. Assembly is used, as the compiler would see through constant operands.
__attribute__((target("avx512f,avx512vnni"))) void dot_avx512() {
  __m512i a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {}, w = _mm512_set1_epi8(3),
          x = _mm512_set1_epi8(5);
  for (int i = 0; i < kRounds; ++i)
    asm volatile(
        "vpdpbusd %9, %8, %0; vpdpbusd %9, %8, %1; vpdpbusd %9, %8, %2; vpdpbusd %9, %8, %3;"
        "vpdpbusd %9, %8, %4; vpdpbusd %9, %8, %5; vpdpbusd %9, %8, %6; vpdpbusd %9, %8, %7"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h)
        : "v"(w), "v"(x));
}

// These are six independent sums of 16 x 16 by a pair of tiles, all of the largest size: 64 products a sum.
constexpr cpu::TileShapes kShapes = {.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                     .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
__attribute__((target("amx-tile,amx-int8"))) void dot_amx() {
  _tile_loadconfig(&kShapes);
  for (int i = 0; i < kTileRounds; ++i) {
    _tile_dpbsud(0, 6, 7);
    _tile_dpbsud(1, 6, 7);
    _tile_dpbsud(2, 6, 7);
    _tile_dpbsud(3, 6, 7);
    _tile_dpbsud(4, 6, 7);
    _tile_dpbsud(5, 6, 7);
  }
  _tile_release();
}

__attribute__((target("avx2"))) void dot_avx2() {
  __m256i sum[kChains] = {}, w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < kRounds; ++i)
    for (__m256i& s : sum) {
      __m256i pairs;
      asm volatile("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(w), "x"(x));
      s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, ones));
    }
  for (const __m256i& s : sum) asm volatile("" : : "x"(s));
}
#endif

}  // namespace

double seconds_to_read(ThreadPool& pool, const std::byte* p, int64_t bytes) {
  constexpr int64_t kBlock = int64_t{256} << 10;
  std::atomic<uint64_t> sink{0};
  const auto start = Clock::now();
  pool.run((bytes + kBlock - 1) / kBlock, [&](int64_t block, int) {
    const auto words = static_cast<size_t>(std::min(kBlock, bytes - block * kBlock) / 64 * 8);
    sink.fetch_add(sum_of(reinterpret_cast<const uint64_t*>(p + block * kBlock), words), std::memory_order_relaxed);
  });
  return seconds_since(start);
}

double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const Buffer buffer(kBytes);
  std::vector<double> rates;
  seconds_to_read(pool, buffer.data(), kBytes);  // This pass warms up.
  for (int pass = 0; pass < 6; ++pass)
    rates.push_back(static_cast<double>(kBytes) / seconds_to_read(pool, buffer.data(), kBytes));
  std::nth_element(rates.begin(), rates.begin() + static_cast<int64_t>(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

double int8_rate(ThreadPool& pool, cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::portable) return 0;
  const auto start = Clock::now();
  pool.run(pool.threads(), [&](int64_t, int) {
    isa == cpu::Isa::amx ? dot_amx() : isa == cpu::Isa::avx512 ? dot_avx512() : dot_avx2();
  });
  const double products = (isa == cpu::Isa::amx ? double{kTileRounds} * kTileChains * 16 * 16 * 64
                                                : double{kRounds} * kChains * (isa == cpu::Isa::avx512 ? 64 : 32)) *
                          pool.threads();
  return products / seconds_since(start);
#else
  (void)pool, (void)isa;
  return 0;
#endif
}

}  // namespace fidelio::app
