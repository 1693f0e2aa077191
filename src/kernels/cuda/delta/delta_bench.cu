// This program measures the kernels of gated delta nets, with 16 key heads and heads of 128 columns, by replaying CUDA
// graphs over layers that together are larger than L2:
//
//   delta_bench [value heads, else 32 and 48]
//
// 32 value heads are those of qwen3.5-9b and qwen3.6-35b-a3b, 48 those of qwen3.5-27b. For rows of output it prints the
// microseconds of a layer, and the bytes a second with which states are read and written; for prompts the microseconds
// of a layer, and the operations a second that the chunks need.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/delta/delta.h"
#include "kernels/cuda/device/cuda_error.cuh"
#include "kernels/cuda/device/device.h"

using namespace fidelio;
using namespace fidelio::cuda;

namespace {

constexpr int kColumns = 128, kKeyHeads = 16, kKernel = 4;

DeviceBuffer randoms(int64_t n, float mean, float deviation) {
  static std::mt19937 rng(1);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> few(static_cast<size_t>(std::min<int64_t>(n, 1 << 20)));
  for (float& v : few) v = normal(rng);
  DeviceBuffer to(static_cast<size_t>(n) * 4);
  for (int64_t at = 0; at < n; at += std::ssize(few))
    cuda_check(cudaMemcpy(to.as<float>() + at, few.data(), static_cast<size_t>(std::min(n - at, std::ssize(few))) * 4,
                          cudaMemcpyHostToDevice),
               "uploading");
  return to;
}
DeviceBuffer sent(const std::vector<int32_t>& values) {
  DeviceBuffer to(values.size() * 4);
  cuda_check(cudaMemcpy(to.data(), values.data(), to.size(), cudaMemcpyHostToDevice), "uploading");
  return to;
}

// Returns the median microseconds of some work, replayed as a graph.
double microseconds(Stream stream, const std::function<void()>& work) {
  work();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph");
  work();
  cuda_check(cudaStreamEndCapture(stream, &graph), "ending a graph");
  cuda_check(cudaGraphInstantiate(&exec, graph, 0), "making a graph");
  cudaEvent_t begin, end;
  cuda_check(cudaEventCreate(&begin), "making an event");
  cuda_check(cudaEventCreate(&end), "making an event");
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    cuda_check(cudaEventRecord(begin, stream), "measuring");
    cuda_check(cudaGraphLaunch(exec, stream), "replaying a graph");
    cuda_check(cudaEventRecord(end, stream), "measuring");
    cuda_check(cudaEventSynchronize(end), "measuring");
    float milliseconds;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin, end), "measuring");
    if (i >= 5) times.push_back(milliseconds * 1e3f);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// A Bench has layers of `sequences` sequences of `rows` rows, whose last row's state is kept where it was read.
struct Bench {
  int heads, sequences, rows;
  bool of_prompt;
  int n = sequences * rows, channels = (2 * kKeyHeads + heads) * kColumns, values = heads * kColumns,
      chunks = of_prompt ? n / kDeltaChunk : 0;
  int64_t matrices = int64_t{heads} * kColumns * kColumns, inputs = int64_t{kKernel - 1} * channels;
  int layers = static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / (matrices * 4 * sequences), 2, 32));
  Stream stream = make_stream();
  DeviceBuffer segments, kept, slots, chunk_rows;
  DeviceBuffer x = randoms(int64_t{n} * channels, 0, 1), w = randoms(int64_t{channels} * kKernel, 0, 0.5f),
               gates = randoms(int64_t{n} * heads * 2, 0, 1), decay = randoms(2 * heads, -1, 0.3f),
               z = randoms(int64_t{n} * values, 0, 1), norm = randoms(kColumns, 1, 0.1f),
               states = randoms(layers * sequences * matrices, 0, 0.1f),
               windows = randoms(layers * sequences * inputs, 0, 1), convolved = floats(int64_t{n} * channels),
               read = floats(int64_t{n} * values), out = floats(int64_t{n} * values),
               products = floats(delta_product_floats(chunks, heads, kColumns)),
               scores = floats(delta_score_floats(chunks, heads)), factors = floats(delta_factor_floats(chunks, heads));

  static DeviceBuffer floats(int64_t n) { return DeviceBuffer(static_cast<size_t>(n) * 4); }
  Bench(int heads, int sequences, int rows, bool of_prompt)
      : heads(heads), sequences(sequences), rows(rows), of_prompt(of_prompt) {
    std::vector<int32_t> table, behind, own(static_cast<size_t>(sequences)), firsts = {0};
    std::iota(own.begin(), own.end(), 0);
    for (int s = 0; s < sequences; ++s) {
      table.insert(table.end(), {s * rows, rows, s, of_prompt ? 0 : rows, chunks / sequences, chunks / sequences * s});
      behind.insert(behind.end(), static_cast<size_t>(rows), s);
    }
    behind.push_back(sequences);
    for (int c = 1; c < chunks; ++c) firsts.push_back(c * kDeltaChunk);
    segments = sent(table), kept = sent(behind), slots = sent(own), chunk_rows = sent(firsts);
  }
  ~Bench() { destroy_stream(stream); }

  DeltaRows all() const {
    return {segments.as<DeltaSegment>(), sequences, kept.as<int32_t>(), slots.as<int32_t>(),
            chunk_rows.as<int32_t>(),    chunks};
  }
  void convolution(int layer) const {
    const StateSlots own{windows.as<float>() + layer * inputs, layers * inputs};
    convolve(stream, all(),
             {x.as<float>(), w.as<float>(), convolved.as<float>(), n, channels, kKernel, own, of_prompt});
  }
  void rule(int layer) const {
    const DeltaRule d{convolved.as<float>(),
                      gates.as<float>(),
                      gates.as<float>() + int64_t{n} * heads,
                      decay.as<float>(),
                      read.as<float>(),
                      channels,
                      heads,
                      heads / kKeyHeads,
                      kColumns,
                      kColumns,
                      {states.as<float>() + layer * matrices, layers * matrices},
                      products.as<float>(),
                      scores.as<float>(),
                      factors.as<float>()};
    of_prompt ? delta_chunks(stream, all(), d) : delta_rows(stream, all(), d);
  }
  void normed(int) const {
    gated_norm(stream, read.as<float>(), z.as<float>(), norm.as<float>(), 1e-6f, Gate::silu, n, heads, kColumns,
               out.as<float>(), {});
  }
  // Returns the microseconds of some operations of a layer.
  template <typename... Operations>
  double each(const Operations&... operations) const {
    const auto work = [&] {
      for (int layer = 0; layer < layers; ++layer) ((this->*operations)(layer), ...);
    };
    return microseconds(stream, work) / layers;
  }
  void measure() const {
    const double together = each(&Bench::convolution, &Bench::rule, &Bench::normed), alone = each(&Bench::rule);
    std::printf("%d value heads, %d x %d rows%s: %.2f us a layer (convolution %.2f, rule %.2f, norm %.2f), ", heads,
                sequences, rows, of_prompt ? " of prompts" : "", together, each(&Bench::convolution), alone,
                each(&Bench::normed));
    if (of_prompt) {
      const double c = kDeltaChunk, e = kColumns, flops = chunks * heads * 2 * (3 * c * e * e + 5 * c * c * e);
      std::printf("rule %.1f TFLOP/s\n", flops / alone * 1e-6);
    } else {
      const double bytes = 8.0 * static_cast<double>(sequences * matrices);
      std::printf("states %.0f GB/s in the rule, %.0f in all\n", bytes / alone * 1e-3, bytes / together * 1e-3);
    }
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> all = {32, 48};
  if (argc > 1) all = {std::atoi(argv[1])};
  for (const int heads : all) {
    for (const int rows : {1, 2, 4, 9})
      for (const int sequences : {1, 8, 32, 128}) Bench(heads, sequences, rows, false).measure();
    for (const int sequences : {1, 4})
      for (const int rows : {512, 2048}) Bench(heads, sequences, rows, true).measure();
  }
}
