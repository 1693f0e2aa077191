// This file defines weights in a Cuda's memory, and the experts that a step chose.
#pragma once
#include <vector>

#include "formats/format_spec.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/linear/prefill/lowbit_many.h"
#include "kernels/cuda/rows/routes.h"
#include "step/routes.h"

namespace fidelio::cuda {

// A Linear is a packed weight.
struct Linear {
  int64_t out = 0, in = 0;
  FormatSpec spec;
  // The view is the four high bits of integers of 5 to 8; for other weights its blocks are null.
  WeightValues values, view;
  float factor = 1;  // the FP16 form is value / factor, where factor is a power of two; the view has its own
  DeviceBuffer codes, row_factor, grid, bias;
  // Tells whether a reading of so many high bits (Reading) reads the view. That is the only width at which blocks can
  // be cut.
  bool is_viewed(int high_bits) const { return high_bits > 0 && high_bits < spec.bits && view.lowbit.blocks; }
  int64_t bytes() const { return static_cast<int64_t>(codes.size() + row_factor.size() + grid.size() + bias.size()); }
};

// Experts has one matrix of each of a layer's experts.
struct Experts {
  std::vector<const Linear*> weights;
  bool alone = false;              // all are codes of one shape, so a kernel can look up the expert of a slot
  bool many = false;               // products of many rows can take all groups in one launch
  DeviceBuffer table, view_table;  // routed_table() (linear/decode/lowbit_routed.h) of the weights and of their views
};

// Routing holds the experts of a step's rows. Either the device chose them and dealt slots out, or the host has the
// choice and sent the groups to the device.
struct Routing {
  bool alone = false;  // the device alone knows the choice; `host` and its tiles are of other slots
  int per_row = 0;
  Routes host;
  // These are the host's tiles of kRoutedRows slots, for prompts (linear/prefill/lowbit_many.h), and the place of
  // each slot in them.
  std::vector<RoutedTile> tiles;
  std::vector<int32_t> places;
  // These describe the slots on the device, in the memory of `slots`. If each slot is multiplied alone, all are null
  // except the shares.
  TiledSlots at;
  int64_t tile_count = 0;  // the number of tiles; if the device dealt them out, an upper bound
  std::vector<std::byte> received;
  // `chosen` has experts and shares (n, k), `slots` is the memory of `at`, and the others hold activations of slots.
  DeviceBuffer chosen, slots, blocks, many, many_factor;
};

}  // namespace fidelio::cuda
