// This program times gated delta nets on the CPU, in the shapes of public models:
//
//   delta_cpu_bench [threads [isa]]
//
// A step of one row for each sequence reads and writes states. It is compared with a plain loop that multiplies as many
// other bytes of the same memory by a number, in turns with it. The states in use are a gigabyte, more than most caches
// hold. A prompt is timed in chunks, and row by row as output is; its operations are counted for the latter, 7 for each
// value of a state.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "core/rng.h"
#include "kernels/cpu/cpu.h"

namespace fidelio {
namespace {

struct Shape {
  const char* name;
  int layers, key_heads, heads;  // keys and values have 128 columns
};
constexpr Shape kShapes[] = {{"qwen3.5-0.8b", 18, 16, 16}, {"qwen3.5-9b", 24, 16, 32}, {"qwen3.8-27b", 48, 16, 48}};
constexpr int kColumns = 128, kKernel = 4, kRounds = 12;

class Timer {
 public:
  Timer(Cpu& cpu, const Shape& shape, int64_t rows, int64_t slots)
      : cpu_(cpu),
        shape_({shape.layers, shape.heads, kColumns, kColumns, kKernel - 1,
                int64_t{2 * shape.key_heads + shape.heads} * kColumns}),
        slots_(slots),
        x_(filled(rows, shape_.channels)),
        y_(cpu.allocate(rows, shape_.channels)),
        out_(cpu.allocate(rows, int64_t{shape.heads} * kColumns)),
        b_(filled(rows, shape.heads)),
        a_(filled(rows, shape.heads)),
        decay_(filled(2, shape.heads)) {
    std::vector<float> weight(static_cast<size_t>(shape_.channels * kKernel), 0.3f);
    weight_ = cpu.pack_convolution(weight, shape_.channels);
    for (int head = 0; head < shape.heads; ++head) decay_.row(0)[head] = -0.1f;
    states_ = cpu.allocate_states(shape_, slots);
    scale(0, slots * shape_.floats(), 1);  // touches all of it
    cpu.reserve(rows, shape_.channels, 4096);
    attention_.layers.resize(1);
    attention_.rotations = {{{1}, 1}};
    attention_.heads = attention_.kv_heads = 1;
    attention_.head_dim = 2;
  }

  // Steps of one row for each of `sequences` sequences, which take turns in the slots.
  void decode(const char* name, int64_t sequences) {
    double best = 1e9, probe = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      Batch batch;
      for (int64_t i = 0; i < sequences; ++i) {
        const auto slot = static_cast<int32_t>((round * sequences + i) % slots_);
        append(batch, 1, RowKind::output);
        batch.begin_from(slot);
        batch.keep_state(0, slot);
      }
      best = std::min(best, seconds([&] { rule(batch); }));
      const int64_t other = (round * sequences + slots_ / 2) % (slots_ - sequences + 1);
      probe = std::min(probe, seconds([&] { scale(other * shape_.floats(), sequences * shape_.floats(), 0.999f); }));
    }
    const auto floats = static_cast<double>(sequences * shape_.layers * shape_.matrices()),
               probed = static_cast<double>(sequences * shape_.floats());
    fmt::print("{}, {} sequences: {:.2f} ms a step, {:.1f} GB/s of state, {:.0f}% of a plain loop's\n", name, sequences,
               best * 1e3, 8 * floats / best / 1e9, 100 * (floats / best) / (probed / probe));
  }

  void prompt(const char* name, int32_t rows) {
    for (const RowKind kind : {RowKind::prompt, RowKind::output}) {
      double rule_time = 1e9, convolution = 1e9;
      for (int round = 0; round < kRounds; ++round) {
        Batch batch;
        append(batch, rows, kind);
        batch.keep_state(rows - 1, 0);
        rule_time = std::min(rule_time, seconds([&] { rule(batch); }));
        convolution = std::min(convolution, seconds([&] {
                                 for (int layer = 0; layer < shape_.layers; ++layer)
                                   cpu_.convolve(x_, weight_, y_, states_, layer);
                               }));
      }
      const double operations = 7.0 * static_cast<double>(rows * shape_.layers * shape_.matrices());
      fmt::print("{}, {} rows {}: {:.1f} us a row and layer, {:.0f} GFLOP/s; convolution {:.1f} us\n", name, rows,
                 kind == RowKind::prompt ? "in chunks" : "row by row", rule_time / rows / shape_.layers * 1e6,
                 operations / rule_time / 1e9, convolution / rows / shape_.layers * 1e6);
    }
  }

 private:
  Cpu::Matrix filled(int64_t rows, int64_t columns) {
    Cpu::Matrix matrix = cpu_.allocate(rows, columns);
    Rng rng(1);
    for (int64_t i = 0; i < rows * columns; ++i) matrix.data()[i] = static_cast<float>(rng.normal());
    return matrix;
  }
  static void append(Batch& batch, int32_t rows, RowKind kind) {
    const std::vector<int32_t> pages(static_cast<size_t>(rows / kPageTokens + 1));
    batch.append(std::vector<int32_t>(static_cast<size_t>(rows)), 0, pages, 0, kind);
  }
  template <typename F>
  static double seconds(const F& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void rule(const Batch& batch) {
    cpu_.begin(batch, Reading(), attention_);
    for (int layer = 0; layer < shape_.layers; ++layer) cpu_.delta_rule(x_, b_, a_, decay_, out_, states_, layer);
  }
  void scale(int64_t first, int64_t count, float factor) {
    constexpr int64_t kPart = 1 << 16;
    float* state = states_.storage.as<float>() + first;
    cpu_.pool().run_ranges((count + kPart - 1) / kPart, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin * kPart; i < std::min(end * kPart, count); ++i) state[i] *= factor;
    });
  }

  Cpu& cpu_;
  const StateShape shape_;
  const int64_t slots_;
  Cpu::Matrix x_, y_, out_, b_, a_, decay_, weight_;
  Cpu::States states_;
  AttentionShape attention_;
};

void bench(const Cpu::Options& options) {
  Cpu cpu(options);
  fmt::print("{} threads, {}\n", cpu.pool().threads(), cpu::name_of(cpu.isa()));
  for (const Shape& shape : kShapes) {
    constexpr int32_t kRows = 512;
    const int64_t bytes = int64_t{shape.layers} * shape.heads * kColumns * kColumns * 4;
    Timer timer(cpu, shape, kRows, (int64_t{1} << 30) / bytes + 1);
    timer.decode(shape.name, 1);
    timer.decode(shape.name, 6);
    timer.prompt(shape.name, kRows);
  }
}

}  // namespace
}  // namespace fidelio

int main(int argc, char** argv) {
  fidelio::Cpu::Options options;
  if (argc > 1) options.threads = std::atoi(argv[1]);
  if (argc > 2) options.isa = fidelio::cpu::parse_isa(argv[2]);
  fidelio::bench(options);
}
