// What this machine can do, measured in the same run as whatever is compared with it.
#pragma once
#include <cstdint>

#include "core/thread_pool.h"

namespace fidelio::app {

// Read bandwidth of main memory in bytes per second: the median of several passes over a buffer far larger than the
// caches.
double read_bandwidth(ThreadPool& pool);

}  // namespace fidelio::app
