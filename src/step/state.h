// This file defines what a sequence keeps besides its pages of keys and values: a state of fixed size, which every
// row changes. Gated delta nets keep one matrix for each value head and the last inputs of their convolution.
//
// States live in numbered slots of a backend's memory. A step reads the state before a segment's first row from one
// slot, and writes the states after chosen rows to other slots (Segment::state, Batch::kept in batch.h), so a state
// that was written stays what it is for as long as its slot is held:
//
//   a snapshot           is a slot that a published page of the cache holds too
//   a rollback to row r  is the slot that row r was kept in, and the others are given back
//   a preemption         gives the sequence's slot back; it continues from its last snapshot
//
// runtime/state_table.h counts who holds a slot.
#pragma once
#include <cstdint>

namespace fidelio {

// Rows of a prompt are computed in chunks of this many positions, which begin at multiples of it: the rows of a whole
// chunk together, by kernels for many rows, and all other rows one after the other. The two round differently, so a
// row's bits depend on whether its whole chunk is in the batch (engine/scheduler.h cuts prompts accordingly).
constexpr int kStateChunk = 64;

// All layers of a model that keep a state keep one of the same shape, in FP32: (heads, key_dim, value_dim) values of
// the recurrence and (rows, channels) inputs of the convolution, the oldest first. With 0 layers there is no state.
struct StateShape {
  int layers = 0;
  int heads = 0, key_dim = 0, value_dim = 0;
  int rows = 0;  // one less than the convolution's kernel
  int64_t channels = 0;
  // The predictor of a model that drafts with it reads what the row before led to (op::Before): so many values, once
  // for all layers.
  int64_t carried = 0;

  int64_t matrices() const { return int64_t{heads} * key_dim * value_dim; }      // the values of one layer's matrices
  int64_t inputs() const { return rows * channels; }                             // the values of one layer's inputs
  int64_t floats() const { return layers * (matrices() + inputs()) + carried; }  // the values of a slot
  bool operator==(const StateShape&) const = default;
};

}  // namespace fidelio
