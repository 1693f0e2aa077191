// This file has products of a mixture of experts in which every slot (step/routes.h) is a row by itself: y[slot] =
// W[expert of the slot] x[slot's input]. Only the device knows which expert that is, so a step with such products can
// be recorded as a graph. A thread block looks its slot's expert up and continues as lowbit_stream.cuh does with one
// row, so the bits are those of any other product.
//
// If there are more slots than experts, slots of one expert share its weights in tiles of kTiledRows (rows/routes.h
// forms the tiles), with the kernel for eight rows. Thread blocks for tiles that do not exist end at once.
//
//   grid   slot or tile 0: [gate: row blocks][up: row blocks]   slot or tile 1: ...
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/cuda/linear/layout/lowbit.h"

namespace fidelio::cuda {

// Returns a table of where the weights of all experts are, to be copied to device memory. The weights must be
// integers or grids of one shape.
std::vector<std::byte> routed_table(std::span<const LowbitWeight* const> weights);

// A RoutedTile is a number of consecutive slots of one expert: up to kTiledRows, or for prompts kRoutedRows
// (prefill/lowbit_many.h).
constexpr int kTiledRows = 8;
struct RoutedTile {
  int32_t expert, first_slot, rows;
};

// RoutedOutputs names up to two matrices of each expert, such as gate and up.
struct RoutedOutputs {
  LowbitShape shape;  // the shape of every weight
  struct {
    const void* table = nullptr;  // the result of routed_table(), on the device
    float* y = nullptr;           // (slots, out)
  } of[2];
  int count = 0;
};

struct RoutedInput {
  const uint8_t* x = nullptr;  // the inputs, each prepared alone (rows/routes.h)
  int64_t slots = 0;
  int slots_per_input = 1;           // k if a row's slots share their input, 1 if each slot has its own
  const int32_t* experts = nullptr;  // (slots)
  // Alternatively, these are tiles of slots whose inputs were prepared together: at most `most_tiles`, with their
  // number on the device.
  const RoutedTile* tiles = nullptr;
  int64_t most_tiles = 0;
  const int32_t* tile_count = nullptr;
};
// Multiplies all slots.
void lowbit_routed(Stream stream, const RoutedInput& input, const RoutedOutputs& outputs);

}  // namespace fidelio::cuda
