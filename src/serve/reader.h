// serve: the threads that make requests of bodies: JSON, chat template, tokenizer. A long body takes seconds, so short
// ones have threads of their own, and one thread takes the long ones, the shortest first.
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
  ~Reader();  // what has not begun is dropped
  // `bytes` are those of the body.
  void add(size_t bytes, std::function<void()> work);

 private:
  static constexpr size_t kShort = 64 << 10;
  static constexpr int kOfShort = 2;  // threads
  using Queue = std::multimap<size_t, std::function<void()>>;
  void run(bool long_ones);
  Queue::iterator next(bool long_ones);

  std::mutex mutex_;
  std::condition_variable wake_;
  Queue work_;  // by bytes, short ones as if they had kShort: in the order in which they came
  bool ending_ = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace fidelio::serve
