// Weights in a Cuda's memory.
#pragma once
#include <vector>

#include "formats/format_spec.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/linear/prefill/lowbit_many.h"
#include "kernels/cuda/rows/routes.h"
#include "step/routes.h"

namespace fidelio::cuda {

// A weight in its packed life.
struct Linear {
  int64_t out = 0, in = 0;
  FormatSpec spec;
  WeightValues values, view;  // the view's: the four high bits of integers of 5 to 8; of others its blocks are null
  float factor = 1;           // FP16 form = value / factor, a power of two; the view's is its own
  DeviceBuffer codes, row_factor, grid, bias;
  // Whether so many high bits (Reading) mean the view: it is the only width at which blocks can be cut.
  bool is_viewed(int high_bits) const { return high_bits > 0 && high_bits < spec.bits && view.lowbit.blocks; }
  int64_t bytes() const { return static_cast<int64_t>(codes.size() + row_factor.size() + grid.size() + bias.size()); }
};

// One matrix of each of a layer's experts.
struct Experts {
  std::vector<const Linear*> weights;
  bool alone = false;              // all are codes of one shape: a kernel finds the expert of a slot
  bool many = false;               // and products of many rows take them, all groups at once
  DeviceBuffer table, view_table;  // linear/decode/lowbit_routed.h, of the weights and of their views
};

// Experts of a step's rows: chosen and dealt out on the device, or where the host groups slots by them, sent there again.
struct Routing {
  bool alone = false;  // no host: `host` and its tiles are not of these slots
  int per_row = 0;
  Routes host;
  // Its tiles of kRoutedRows (linear/prefill/lowbit_many.h), of prompts; where its rows lie in them.
  std::vector<RoutedTile> tiles;
  std::vector<int32_t> places;
  // Of the slots, in memory of `slots`: null but for the shares where each slot is multiplied alone.
  TiledSlots at;
  int64_t tile_count = 0;  // dealt out by the device: at most
  std::vector<std::byte> received;
  DeviceBuffer chosen, slots, blocks, many, many_factor;  // experts and shares (n, k); `at`; activations of slots
};

}  // namespace fidelio::cuda
