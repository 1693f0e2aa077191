// Products of a mixture of experts where every slot (kernels/routes.h) is a row by itself: y[slot] = W[expert of the slot]
// x[slot's input]. Which expert that is the device alone knows, so a step with such products can be recorded. A thread block
// looks its slot's expert up and goes on as in lowbit_stream.cuh with one row: the bits are those of any other product.
//
//   grid   slot 0: [gate: row blocks][up: row blocks]   slot 1: ...
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

// Where the weights of all experts are, to be kept in device memory. Integers or grids of one shape.
std::vector<std::byte> routed_table(std::span<const LowbitWeight* const> weights);

struct RoutedOutput {
  const void* table = nullptr;  // on the device
  float* y = nullptr;           // (slots, out)
};
struct RoutedLowbit {
  LowbitShape shape;           // of every weight
  const uint8_t* x = nullptr;  // inputs, each prepared alone (rows/routes.h)
  int64_t slots = 0;
  int slots_per_input = 1;           // k where they share their row, 1 where each has its own
  const int32_t* experts = nullptr;  // (slots)
  RoutedOutput outputs[2];
  int count = 0;
};
void lowbit_routed(Stream stream, const RoutedLowbit& product);

}  // namespace fidelio::cuda
