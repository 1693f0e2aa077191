// This file measures what the machine can do at best, in the same run as the code that is compared with it.
#pragma once
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/cpu/linear/linear.h"

namespace fidelio::app {

// Returns the read bandwidth of main memory in bytes per second, as the median of several passes over a buffer far
// larger than the caches.
double read_bandwidth(ThreadPool& pool);

// Returns the seconds of one pass in which every thread reads its parts of `bytes` bytes at p. A kernel that streams
// the same bytes cannot be faster.
double seconds_to_read(ThreadPool& pool, const std::byte* p, int64_t bytes);

// Returns multiply-adds of 8-bit integers a second, by all threads at once, on registers: products of whole tiles
// (amx), vpdpbusd (avx512), or the exact sequence of vpmaddubsw, vpmaddwd and vpaddd (avx2). Returns 0 for the portable
// kernels, which have no such instruction.
double int8_rate(ThreadPool& pool, cpu::Isa isa);

}  // namespace fidelio::app
