// This file defines a fixed set of worker threads. Code that needs parallel work owns a pool and passes it on; it is
// never a singleton.
//
// run(jobs, f) calls f(job, thread) for job 0..jobs-1 and returns when all are done. Jobs are handed out dynamically by
// an atomic counter, so results must not depend on which thread does which job, and jobs must write disjoint outputs.
// The calling thread works too. run_ranges hands out runs of jobs that get shorter towards the end: a thread gets long
// streams at first, and none waits long for the last. Workers spin briefly for the next call (a decode step makes
// hundreds), then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fidelio {

class ThreadPool {
 public:
  explicit ThreadPool(int threads = 0);  // 0 means as many threads as the machine (or its cgroup) gives.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(int64_t job, int thread). An exception thrown by a job is rethrown here after all jobs have ended.
  template <typename F>
  void run(int64_t jobs, F&& f) {
    if (jobs <= 1 || workers_.empty()) {
      for (int64_t job = 0; job < jobs; ++job) f(job, 0);
      return;
    }
    using Function = std::remove_reference_t<F>;
    dispatch(jobs, false, const_cast<void*>(static_cast<const void*>(&f)),
             [](void* context, int64_t job, int64_t, int thread) { (*static_cast<Function*>(context))(job, thread); });
  }

  // Calls f(int64_t first, int64_t last, int thread) for runs of jobs that cover [0, jobs).
  template <typename F>
  void run_ranges(int64_t jobs, F&& f) {
    if (jobs <= 1 || workers_.empty()) {
      if (jobs > 0) f(int64_t{0}, jobs, 0);
      return;
    }
    using Function = std::remove_reference_t<F>;
    dispatch(jobs, true, const_cast<void*>(static_cast<const void*>(&f)),
             [](void* context, int64_t first, int64_t last, int thread) {
               (*static_cast<Function*>(context))(first, last, thread);
             });
  }

 private:
  using Call = void (*)(void* context, int64_t first, int64_t last, int thread);
  void dispatch(int64_t jobs, bool ranges, void* context, Call call);
  void work(int thread);
  void drain(int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  int64_t jobs_ = 0;
  int64_t share_ = 0;  // The next run is the number of jobs left divided by share_; with 0 a run is always one job.
  int sleepers_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> busy_{0};
};

}  // namespace fidelio
