#include "app/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "core/tensor.h"

namespace fidelio::app {

double read_bandwidth(ThreadPool& pool) {
  constexpr size_t kBytes = size_t{512} << 20, kBlock = size_t{1} << 20;
  const Buffer buffer(kBytes);
  std::atomic<uint64_t> sink{0};
  std::vector<double> rates;
  for (int pass = 0; pass < 7; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(kBytes / kBlock, [&](int64_t block, int) {
      const uint64_t* p = buffer.as<uint64_t>() + static_cast<size_t>(block) * (kBlock / 8);
      uint64_t sum[8] = {};  // eight chains: the loop is bound by memory, not by the additions
      for (size_t i = 0; i < kBlock / 8; i += 8)
        for (size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
      sink.fetch_add(sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7], std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (pass > 0) rates.push_back(static_cast<double>(kBytes) / seconds);  // the first pass warms up
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<int64_t>(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace fidelio::app
