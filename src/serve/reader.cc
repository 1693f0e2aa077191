#include "serve/reader.h"

#include <algorithm>

namespace fidelio::serve {

Reader::Reader() {
  for (int i = 0; i < kOfShort; ++i) threads_.emplace_back([this] { run(false); });
  threads_.emplace_back([this] { run(true); });
}

Reader::~Reader() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Reader::add(size_t bytes, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.emplace(std::max(bytes, kShort), std::move(work));
  }
  wake_.notify_all();  // It wakes any thread that may take the work.
}

Reader::Queue::iterator Reader::next(bool long_ones) {
  const auto first_long = work_.upper_bound(kShort);
  if (long_ones) return first_long;
  return first_long == work_.begin() ? work_.end() : work_.begin();
}

void Reader::run(bool long_ones) {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ending_ || next(long_ones) != work_.end(); });
      if (ending_) return;
      const auto taken = next(long_ones);
      work = std::move(taken->second);
      work_.erase(taken);
    }
    work();
  }
}

}  // namespace fidelio::serve
