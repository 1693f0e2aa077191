// Products of a mixture of experts where every slot (kernels/routes.h) is a row by itself: y[slot] = W[expert of the slot]
// x[slot's input]. Which expert that is the device alone knows, so a step with such products can be recorded. A thread block
// looks its slot's expert up and goes on as in lowbit_stream.cuh with one row: the bits are those of any other product.
// Where there are more slots than experts, those of one expert share its weights in tiles of kTiledRows (rows/routes.h deals
// them out), with the kernel of eight rows; thread blocks of tiles that there are not end at once.
//
//   grid   slot or tile 0: [gate: row blocks][up: row blocks]   slot or tile 1: ...
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

// Where the weights of all experts are, to be kept in device memory. Integers or grids of one shape.
std::vector<std::byte> routed_table(std::span<const LowbitWeight* const> weights);

// Slots of one expert, which follow each other: up to kTiledRows, and of prompts kRoutedRows (prefill/lowbit_many.h).
constexpr int kTiledRows = 8;
struct RoutedTile {
  int32_t expert, first_slot, rows;
};

// Up to two matrices of each expert, such as gate and up.
struct RoutedOutputs {
  LowbitShape shape;  // of every weight
  struct {
    const void* table = nullptr;  // routed_table(), on the device
    float* y = nullptr;           // (slots, out)
  } of[2];
  int count = 0;
};

struct RoutedInput {
  const uint8_t* x = nullptr;  // inputs, each prepared alone (rows/routes.h)
  int64_t slots = 0;
  int slots_per_input = 1;           // k where they share their row, 1 where each has its own
  const int32_t* experts = nullptr;  // (slots)
  // Or tiles of slots, whose inputs were prepared together: at most so many, and how many there are (on the device).
  const RoutedTile* tiles = nullptr;
  int64_t most_tiles = 0;
  const int32_t* tile_count = nullptr;
};
void lowbit_routed(Stream stream, const RoutedInput& input, const RoutedOutputs& outputs);

}  // namespace fidelio::cuda
