// This file runs the threads that turn bodies into requests: JSON, chat template, tokenizer. A long body takes seconds,
// so short ones have threads of their own, and one thread takes the long ones, the shortest first.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace fidelio::serve {

class Reader {
 public:
  Reader();
  ~Reader();  // Work that has not begun is dropped.
  // `bytes` is the size of the body.
  void add(size_t bytes, std::function<void()> work);

 private:
  static constexpr size_t kShort = 64 << 10;
  static constexpr int kOfShort = 2;  // This many threads take only short bodies.
  using Queue = std::multimap<size_t, std::function<void()>>;
  void run(bool long_ones);
  Queue::iterator next(bool long_ones);

  std::mutex mutex_;
  std::condition_variable wake_;
  // The key is the size in bytes. Short bodies all have the key kShort, so they stay in the order of their arrival.
  Queue work_;
  bool ending_ = false;
  std::vector<std::thread> threads_;  // They come last, as they use the others.
};

}  // namespace fidelio::serve
