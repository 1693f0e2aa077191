// This file bounds what a stranger's file may cost. Every parser of such files (JSON, chat templates, tokenizers,
// checkpoints, questions) has the same three limits. Beyond them it throws an Error and never crashes, hangs or fills
// the memory:
//   depth   bounds how deeply things may be nested, so no recursion over them can exhaust the stack;
//   work    counts steps, so no operation takes longer than the size of its input warrants;
//   memory  counts bytes made from the input, beside the input itself.
// The limits are far above what published models need. At worst a file takes 2 s of one core and 256 MB beyond its
// size.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fidelio {

inline constexpr int kMaxNesting = 100;
inline constexpr uint64_t kMaxWork = 10'000'000;   // A step takes 50 to 150 ns.
inline constexpr uint64_t kMaxMemory = 192 << 20;  // This is in bytes.

// This is the allowance of work and memory that is left for one file or one text. Code whose work grows with its input
// charges it here first.
class Meter {
 public:
  // `what` begins the messages, for example "the chat template" or "tokenizer.json".
  explicit Meter(std::string what, uint64_t work = kMaxWork, uint64_t memory = kMaxMemory)
      : what_(std::move(what)), work_(work), memory_(memory) {}

  void work(uint64_t steps) {
    if (steps > work_) [[unlikely]]
      refuse_work();
    work_ -= steps;
  }
  void memory(uint64_t bytes) {
    if (bytes > memory_) [[unlikely]]
      refuse_memory();
    memory_ -= bytes;
  }
  // This is for memory that is released again at once. It must fit beside what is there, and nothing is charged.
  void passing_memory(uint64_t bytes) {
    if (bytes > memory_) [[unlikely]]
      refuse_memory();
  }
  // Raises the allowance, because more input has arrived.
  void allow(uint64_t steps, uint64_t bytes) {
    work_ += steps;
    memory_ += bytes;
  }

 private:
  [[noreturn]] void refuse_work() const;
  [[noreturn]] void refuse_memory() const;
  std::string what_;
  uint64_t work_, memory_;
};

}  // namespace fidelio
