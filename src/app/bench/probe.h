// What this machine can do, measured in the same run as whatever is compared with it.
#pragma once
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio::app {

// Read bandwidth of main memory in bytes per second: the median of several passes over a buffer far larger than the
// caches.
double read_bandwidth(ThreadPool& pool);

// One pass of every thread reading its parts of `bytes` bytes at p, in seconds: what a kernel that streams the same
// bytes could at best take.
double seconds_to_read(ThreadPool& pool, const std::byte* p, int64_t bytes);

// Multiply-adds of 8-bit integers a second, of all threads at once, on registers: products of whole tiles (amx),
// vpdpbusd (avx512), or the exact sequence of vpmaddubsw, vpmaddwd and vpaddd (avx2). 0 for the portable kernels, which
// have no such instruction.
double int8_rate(ThreadPool& pool, cpu::Isa isa);

}  // namespace fidelio::app
