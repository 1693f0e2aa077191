// What a stranger's file may cost. Every parser of such files (JSON, chat templates, tokenizers, checkpoints, questions)
// has the same three limits, and beyond them there is an Error and no crash, no hang and no full memory:
//   depth   how deep things may stand in each other, so that no recursion over them can exhaust the stack;
//   work    steps, so that no operation takes longer than its input's size warrants;
//   memory  bytes made from the input, beside the input itself.
// They are far above what published models need: 2 s of one core and 256 MB beyond the file's size at the worst.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fidelio {

inline constexpr int kMaxNesting = 100;
inline constexpr uint64_t kMaxWork = 10'000'000;   // steps of 50 to 150 ns
inline constexpr uint64_t kMaxMemory = 192 << 20;  // bytes

// What is left for one file or one text. Whoever does work that grows with its input pays here first.
class Meter {
 public:
  // `what` begins the messages: "the chat template", "tokenizer.json".
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
  // Memory that is given back at once: it must fit beside what is there.
  void passing_memory(uint64_t bytes) {
    if (bytes > memory_) [[unlikely]]
      refuse_memory();
  }
  // More input has come.
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
