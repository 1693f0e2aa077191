// This file declares the kernels of gated delta nets (op::Convolve, op::DeltaRule and op::GatedNorm in
// step/program.h), and those of a gate on attention's output. Pointers are into device memory, and values are row-major
// and FP32 unless said otherwise. All operations are row-invariant.
#pragma once
#include <cstdint>

#include "kernels/cuda/delta/narrow.h"
#include "kernels/cuda/rows/ops.h"
#include "step/gate.h"

namespace fidelio::cuda {

// A DeltaSegment is consecutive rows of one sequence. The first `before` rows are computed one after the other, then
// `chunks` chunks of kDeltaChunk rows, which are the ones from `first_chunk` on in the step's list, and then the rest,
// again one after the other.
struct DeltaSegment {
  int32_t first_row = 0, rows = 0, state = -1, before = 0, chunks = 0, first_chunk = 0;
};
constexpr int kDeltaChunk = 64;  // kStateChunk of step/state.h

// DeltaRows says which state each row of a step begins from, and where the states after rows go. The host sends all of
// it before the step's first kernel, so kernels may read it before they wait for the ones in front.
struct DeltaRows {
  const DeltaSegment* segments = nullptr;
  int count = 0;  // of segments; some at the end may have no rows
  // The state after row r of the batch goes to slots[kept[r]] .. slots[kept[r + 1] - 1].
  const int32_t *kept = nullptr, *slots = nullptr;
  const int32_t* chunk_rows = nullptr;  // (chunks) the first row of each chunk
  int chunks = 0;
};

// StateSlots is one layer's part of all slots: slot i begins at first + i * apart, in floats.
struct StateSlots {
  float* first = nullptr;
  int64_t apart = 0;
};

// Computes y (n, channels) = silu(x convolved with w (channels, kernel)). The states are the last kernel - 1 inputs,
// the oldest first: (kernel - 1, channels).
constexpr int kWidestConvolution = 16;
struct Convolution {
  const float *x, *w;
  float* y;
  int64_t n;
  int channels, kernel;
  StateSlots inputs;
  bool of_prompt;  // segments may have many rows
};
// A product of the step's rows goes along with a convolution of output rows; the rows of prompts have none.
void convolve(Stream stream, const DeltaRows& rows, const Convolution& c, const NarrowProduct& along = {});

// A DeltaRule is what op::DeltaRule does. x (n, channels) has q and k of all key heads, then v of all value heads; y is
// (n, heads, value_dim), and the states are (heads, key_dim, value_dim).
constexpr int kMostKeyColumns = 256;
struct DeltaRule {
  const float *x, *b, *a, *decay;
  float* y;
  int channels, heads, group;  // `group` value heads share a key head
  int key_dim, value_dim;
  StateSlots matrices;
  // These are scratch for chunks, see delta_chunks.cuh. They are null if all rows are computed one after the other.
  float *products = nullptr, *scores = nullptr, *factors = nullptr;
};
// Computes rows one after the other. DeltaSegment::chunks must be 0.
void delta_rows(Stream stream, const DeltaRows& rows, const DeltaRule& d);
// Computes rows of prompts, and whole chunks of them on the matrix units.
void delta_chunks(Stream stream, const DeltaRows& rows, const DeltaRule& d);
// These return the floats of the scratch for so many chunks.
int64_t delta_product_floats(int64_t chunks, int heads, int key_dim);
int64_t delta_score_floats(int64_t chunks, int heads);
int64_t delta_factor_floats(int64_t chunks, int heads);

// Computes y (n, heads, e) = rmsnorm(x) * weight (e) * function(gate), where each head is normalised by itself. If
// `prepared` has blocks, which requires that 128 divides e, y is also prepared for lowbit.h.
void gated_norm(Stream stream, const float* x, const float* gate, const float* weight, float eps, Gate function,
                int64_t n, int heads, int e, float* y, const PreparedRows& prepared);
// Computes q (n, h, e) = the first e columns of each head of x (n, h, 2, e), and gate = the others. 4 divides e.
void split_heads(Stream stream, const float* x, int64_t n, int h, int e, float* q, float* gate);
// Computes x (n, d) += sigmoid(gate (n)) * y.
void add_shared(Stream stream, const float* y, const float* gate, int64_t n, int64_t d, float* x);
// A predictor's rows (op::Before, op::Carry, op::Join). Computes y (n, d) = the row before of each row of x, the first
// of a segment from what its state carries. Copies the rows of x whose states are kept to these. Computes y (n, 2 d) =
// the columns of a, and then those of b (n, d).
void before(Stream stream, const DeltaRows& rows, const float* x, int64_t d, const StateSlots& carried, float* y);
void carry(Stream stream, const DeltaRows& rows, const float* x, int64_t d, const StateSlots& carried);
void join(Stream stream, const float* a, const float* b, int64_t n, int64_t d, float* y);

}  // namespace fidelio::cuda
