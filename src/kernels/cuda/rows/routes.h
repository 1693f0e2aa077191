// Mixtures of experts on the device (step/routes.h says what slots are): the choice, and rows into slots and back.
#pragma once
#include "kernels/cuda/linear/decode/lowbit_routed.h"
#include "kernels/cuda/rows/ops.h"
#include "step/routes.h"

namespace fidelio::cuda {

constexpr int kMostExperts = 1024, kMostPerRow = 32;  // what a warp chooses from, and chooses

// logits (n, E) = x (n, d) w^T in FP32, each by a warp, in an order that depends on d alone.
void router_logits(Stream stream, const float* x, const float* w, int64_t n, int64_t d, int experts, float* logits);
// As step/routing.h: a row's experts (n, k), ascending, and their shares.
void choose_experts(Stream stream, const float* logits, int64_t n, const RoutingRule& rule, int32_t* experts,
                    float* shares);
// y (count, columns) = rows of x.
void take_rows(Stream stream, const float* x, int64_t columns, const int32_t* rows, int64_t count, float* y);
// x (n, d) += the sum over a row's slots, in their order, of share times y (slots, d). `slots` (n, k), null: a row's lie
// together, rows in their order; shares are of slots.
struct RowSlots {
  const int32_t* slots = nullptr;
  const float* shares = nullptr;
  int per_row = 0;
};
void add_slots(Stream stream, const float* y, int64_t n, int64_t d, const RowSlots& of, float* x);
// Slots (n k) dealt out on the device: an expert's together, in the order of their rows, in tiles of `tile`, of which there
// are most_tiles() at most. Shares of the slots; a slot's row of x; its place, number of its tile times `tile` and row in
// it; a row's slots.
constexpr int kMostTiled = 1024;  // output rows: of more slots experts have enough for products of their own
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
// Rows for lowbit.h, input_bytes(1, column blocks) a tile: row `rows`[i] of x (., columns), null: row i, goes to places[i];
// null: each into a tile of its own. And those of silu(gate) up.
void prepare_tiled(Stream stream, const float* x, const int32_t* rows, const int32_t* places, int64_t slots,
                   int64_t columns, uint8_t* blocks);
void gate_tiled(Stream stream, const float* gate, const float* up, const int32_t* places, int64_t slots,
                int64_t columns, uint8_t* blocks);

}  // namespace fidelio::cuda
