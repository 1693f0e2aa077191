// Weights in a Cuda's memory.
#pragma once
#include <vector>

#include "formats/format_spec.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/linear/prefill/lowbit_many.h"
#include "kernels/cuda/rows/ops.h"
#include "kernels/routes.h"

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

// Experts of a step's rows: chosen on the device, and where the host groups slots by them, sent there again.
struct Routing {
  bool alone = false;   // no host: a row's slots lie together, `host` is not of them
  bool gating = false;  // the next gate is of slots that are alone
  int per_row = 0;
  int64_t expert_bytes = 0;  // about, of a layer's largest
  Routes host;
  // Experts and shares (n, k); all that follows; rows prepared alone.
  DeviceBuffer chosen, slots, blocks;
  const int32_t *experts = nullptr, *rows = nullptr, *of_rows = nullptr;
  const float* shares = nullptr;
  // Slots as tiles of kRoutedRows (linear/prefill/lowbit_many.h), of which each group fills some.
  std::vector<RoutedTile> tiles;
  std::vector<int32_t> places;
  const RoutedTile* device_tiles = nullptr;
  const int32_t* device_places = nullptr;
  int64_t padded = 0;
  DeviceBuffer many, many_factor;
};

}  // namespace fidelio::cuda
