// This file handles mixtures of experts on the device (step/routes.h defines slots): it chooses experts, and moves
// rows into slots and back.
#pragma once
#include "kernels/cuda/linear/decode/lowbit_routed.h"
#include "kernels/cuda/rows/ops.h"
#include "step/routes.h"

namespace fidelio::cuda {

// The most that a warp can choose from, the most that it can choose, and the most groups of experts.
constexpr int kMostExperts = 1024, kMostPerRow = 32, kMostGroups = 32;

// Computes logits (n, E) = x (n, d) w^T + bias in FP32, each by a warp, in an order that depends on d alone.
struct RouterWeight {
  const float* w;     // (E, d)
  const float* bias;  // (E), or null
};
void router_logits(Stream stream, const float* x, const RouterWeight& router, int64_t n, int64_t d, int experts,
                   float* logits);
// Chooses a row's experts (n, k), in ascending order, and their shares, as step/routing.h does. `adjustments` are
// those of the rule; they are not read where it has none.
void choose_experts(Stream stream, const float* logits, int64_t n, const RoutingRule& rule, const float* adjustments,
                    int32_t* experts, float* shares);
// Computes y (count, columns), the given rows of x.
void take_rows(Stream stream, const float* x, int64_t columns, const int32_t* rows, int64_t count, float* y);
// Adds to x (n, d) the sum over a row's slots, in their order, of share times y (slots, d). `slots` is (n, k). If it
// is null, the slots of a row lie together, with rows in order. Shares belong to slots.
struct RowSlots {
  const int32_t* slots = nullptr;
  const float* shares = nullptr;
  int per_row = 0;
};
void add_slots(Stream stream, const float* y, int64_t n, int64_t d, const RowSlots& of, float* x);
// TiledSlots is the n k slots as the device deals them out: those of an expert together, in the order of their rows,
// in tiles of `tile` slots, of which there are at most most_tiles(). It holds the shares of the slots, each slot's
// row of x, its place (number of its tile times `tile`, plus the row in it), and the slots of each row.
constexpr int kMostTiled = 1024;
struct TiledSlots {
  RoutedTile* tiles = nullptr;
  int32_t *count = nullptr, *rows = nullptr, *places = nullptr, *of_rows = nullptr;
  float* shares = nullptr;
};
constexpr int64_t most_tiles(int64_t slots, int experts, int tile) {
  return slots < experts ? slots : experts + slots / tile;
}
void deal_slots(Stream stream, const int32_t* experts, const float* shares, int64_t slots, const RoutingRule& rule,
                int tile, const TiledSlots& to);
// prepare_tiled() prepares rows for lowbit.h, with input_bytes(1, column blocks) for each tile. Row `rows`[i] of x
// (., columns) goes to places[i]. If `rows` is null it is row i; if `places` is null, each row goes into a tile of
// its own. gate_tiled() does the same for silu(gate) up.
void prepare_tiled(Stream stream, const float* x, const int32_t* rows, const int32_t* places, int64_t slots,
                   int64_t columns, uint8_t* blocks);
void gate_tiled(Stream stream, const float* gate, const float* up, const int32_t* places, int64_t slots,
                int64_t columns, uint8_t* blocks);

}  // namespace fidelio::cuda
