// Linear kernels against this machine's own ceilings, interleaved pass by pass: a plain probe reads one copy of the
// weight, the kernel multiplies by another, a loop of vpdpbusd runs on registers. The table shows the first decile of
// the passes' times, which other programs on the machine disturb least, then the share of the probe's bandwidth and of
// the INT8 rate (both planes of A16 counted) at that decile, and the median time.
//
//   linear_bench FORMATS MODES ROWS [OUT IN [THREADS [MEGABYTES [ISA]]]]      e.g. linear_bench int4g64zs8,lut4g64
//   a16,a8 1,4
//
// The weight is copied until MEGABYTES are streamed a round (default 240: far above the last-level cache; small: in
// cache).
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "kernels/cpu/linear.h"

using namespace fidelio;

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double quantile(std::vector<double> v, double q) {
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(v.size()));
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) c == ',' ? (void)parts.emplace_back() : parts.back().push_back(c);
  return parts;
}

LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in) {
  LinearWeight w = allocate_weight(spec, out, in);
  Rng rng(1);
  for (const StoredTensor& t : stored_tensors(w)) {
    if (t.tensor.dtype == DType::f32) {
      for (float& v : t.tensor.as<float>()) v = static_cast<float>(0.001 * rng.uniform());
    } else if (t.tensor.dtype == DType::f16) {
      for (f16& v : t.tensor.as<f16>()) v = to_f16(static_cast<float>(0.001 * rng.uniform()));
    } else {
      for (int64_t i = 0; i < t.tensor.bytes(); ++i) t.tensor.data[i] = static_cast<std::byte>(rng.next());
    }
  }
  return w;
}

__attribute__((target("avx2"))) uint64_t read_all(const std::byte* p, int64_t bytes) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i + 128 <= bytes; i += 128)
    for (int j = 0; j < 4; ++j) {
      if (j % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(p + i + 32 * j + 8192), _MM_HINT_T1);
      sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
    }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

// Multiply-adds a second of one thread's vpdpbusd on registers.
__attribute__((target("avx512f,avx512vnni"))) double int8_rate() {
  __m512i a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {}, w = _mm512_set1_epi8(3),
          x = _mm512_set1_epi8(5);
  constexpr int kRounds = 10000;
  const auto start = Clock::now();
  for (int i = 0; i < kRounds; ++i)
    asm volatile(
        "vpdpbusd %9, %8, %0; vpdpbusd %9, %8, %1; vpdpbusd %9, %8, %2; vpdpbusd %9, %8, %3;"
        "vpdpbusd %9, %8, %4; vpdpbusd %9, %8, %5; vpdpbusd %9, %8, %6; vpdpbusd %9, %8, %7"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h)
        : "v"(w), "v"(x));
  return 64.0 * 8 * kRounds / seconds_since(start);
}

void measure(const std::string& name, Activations mode, cpu::Isa isa, int64_t rows, int64_t out, int64_t in,
             ThreadPool& pool, double megabytes) {
  const FormatSpec spec = parse_format(name);
  const cpu::LinearKernel* kernel = nullptr;
  for (const cpu::LinearKernel& k : cpu::lowbit_kernels(isa))
    if (k.kind == spec.kind && k.mode == mode && k.accepts(spec, out, in)) kernel = &k;
  check(kernel != nullptr, "no low-bit kernel for {}", name);
  std::vector<cpu::Linear> copies(1);
  copies[0] = {.out = out, .in = in, .spec = spec, .packed = kernel->pack(random_weight(spec, out, in)), .bias = {}};
  const double bytes = static_cast<double>(copies[0].packed.size());
  const auto count = std::max<size_t>(1, static_cast<size_t>(megabytes * 1e6 / bytes));
  while (copies.size() < count) {
    copies.push_back({.out = out, .in = in, .spec = spec, .packed = Buffer(copies[0].packed.size()), .bias = {}});
    std::memcpy(copies.back().packed.data(), copies[0].packed.data(), copies[0].packed.size());
  }
  std::vector<float> x(static_cast<size_t>(rows * in)), y(static_cast<size_t>(rows * out));
  Rng rng(2);
  for (float& v : x) v = static_cast<float>(rng.normal());
  const int64_t group = cpu::activation_group(spec, in), blocks = (out + kernel->block - 1) / kernel->block;
  Buffer scratch(cpu::prepared_bytes(kernel->form, rows, in, group));
  const int64_t per_job = rows >= 64 ? 4 : 16, jobs = (blocks + per_job - 1) / per_job;
  std::vector<double> times, probes, rates;
  volatile uint64_t sink = 0;
  const auto begin = Clock::now();
  for (size_t pass = 0; pass < 20 || seconds_since(begin) < 1.0; ++pass) {
    const cpu::Linear &read = copies[pass % count], &w = copies[(pass + count / 2) % count];
    auto start = Clock::now();
    pool.run(jobs, [&](int64_t job, int) {
      const int64_t part = static_cast<int64_t>(read.packed.size()) / jobs;
      sink = sink + read_all(read.packed.data() + job * part, part);
    });
    probes.push_back(seconds_since(start));
    start = Clock::now();
    const cpu::Prepared input = cpu::prepare(kernel->form, isa, x.data(), rows, in, group, scratch.data(), 0, 0);
    pool.run(rows, [&](int64_t m, int) {
      cpu::prepare(kernel->form, isa, x.data(), rows, in, group, scratch.data(), m, m + 1);
    });
    pool.run(jobs, [&](int64_t job, int) {
      kernel->multiply(w, input, job * per_job, std::min(blocks, (job + 1) * per_job), y.data(), out, false);
    });
    times.push_back(seconds_since(start));
    rates.push_back(1 / (int8_rate() * pool.threads()));
  }
  const double time = quantile(times, 0.1), weights = static_cast<double>(out * in),
               macs = weights * static_cast<double>(rows) / time;
  std::printf(
      "%-14s %-4s M=%-4lld %9.1f us %6.1f GB/s %5.1f%% of probe %7.1f Gw/s %8.1f GMAC/s %5.1f%% of INT8 rate, median "
      "%9.1f us\n",
      name.c_str(), std::string(name_of(mode)).c_str(), static_cast<long long>(rows), time * 1e6, bytes / time * 1e-9,
      100 * quantile(probes, 0.1) / time, weights / time * 1e-9, macs * 1e-9,
      100 * macs * (mode == Activations::a16 ? 2 : 1) * quantile(rates, 0.1), quantile(times, 0.5) * 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  check(argc >= 4, "usage: linear_bench FORMATS MODES ROWS [OUT IN [THREADS [MEGABYTES [ISA]]]]");
  const int64_t out = argc > 5 ? std::stoll(argv[4]) : 5632, in = argc > 5 ? std::stoll(argv[5]) : 2048;
  ThreadPool pool(argc > 6 ? std::stoi(argv[6]) : 2);
  const double megabytes = argc > 7 ? std::stod(argv[7]) : 240;
  const cpu::Isa isa = argc > 8 ? cpu::parse_isa(argv[8]) : cpu::supported_isas().back();
  for (const std::string& rows : split(argv[3]))
    for (const std::string& format : split(argv[1]))
      for (const std::string& mode : split(argv[2]))
        measure(format, mode == "a8" ? Activations::a8 : Activations::a16, isa, std::stoll(rows), out, in, pool,
                megabytes);
} catch (const std::exception& e) {
  std::fprintf(stderr, "linear_bench: %s\n", e.what());
  return 1;
}
