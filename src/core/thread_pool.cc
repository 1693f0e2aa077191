#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>

namespace fidelio {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

int available_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Workers spin for about 30 microseconds. That is longer than the gaps between the operations of one step and too short
// for anybody to notice a busy machine.
constexpr int kSpins = 2000;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = available_threads();
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::dispatch(int64_t jobs, bool ranges, void* context, Call call) {
  call_ = call;
  context_ = context;
  jobs_ = jobs;
  share_ = ranges ? 2 * threads() : 0;
  failure_ = nullptr;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  bool sleeping = false;
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    sleeping = sleepers_ > 0;
  }
  if (sleeping) wake_.notify_all();
  drain(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins)
    spins < 16 * kSpins ? pause_briefly() : std::this_thread::yield();
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadPool::drain(int thread) {
  for (int64_t first = next_.load(std::memory_order_relaxed);;) {
    int64_t last = 0;
    do {
      if (first >= jobs_) return;
      last = first + (share_ > 0 ? std::max<int64_t>(1, (jobs_ - first) / share_) : 1);
    } while (!next_.compare_exchange_weak(first, last, std::memory_order_relaxed));
    try {
      call_(context_, first, last, thread);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    first = next_.load(std::memory_order_relaxed);
  }
}

void ThreadPool::work(int thread) {
  for (uint64_t seen = 0;;) {
    for (int spins = 0; spins < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spins) pause_briefly();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      --sleepers_;
    }
    ++seen;
    if (stop_) return;
    drain(thread);
    busy_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace fidelio
