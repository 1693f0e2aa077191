// This file computes rows of a gated delta net one after the other, by a thread block that keeps 32 value columns of a
// head's state in registers.
//
// A column of the state, and what a row writes into it and reads from it, depends on no other column. So the columns of
// a head are cut into slices, which fill the device even for one row. Warp w has the key rows [w kKeys, (w + 1) kKeys)
// of the slice, and lane l its column l. For a row with the decay e and the share s that is written, a column S is
//
//   known = k S,  read = q S            in parts by the warps, which are added in their order
//   change = s (v - e known)
//   y = e read + (q k) change           which is q (e S + k change)
//   S = e S + k change
//
// Both sums are of the state before the row, so that a row takes one barrier. All products and sums are spelled out, so
// that every kernel that includes this gives a row the same bits.
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/delta/delta.h"
#include "kernels/cuda/device/ptx.cuh"

namespace fidelio::cuda {

constexpr int kDeltaWarps = 8, kDeltaThreads = 32 * kDeltaWarps, kDeltaColumns = 32;
constexpr int kRowsAhead = kDeltaWarps;  // rows that are prepared at a time, one by each warp

// RowScratch is shared memory for rows that were prepared.
template <int kKeys>
struct RowScratch {
  alignas(16) float q[kRowsAhead][kKeys * kDeltaWarps];
  alignas(16) float k[kRowsAhead][kKeys * kDeltaWarps];
  float v[kRowsAhead][kDeltaColumns];
  float sums[2][kDeltaWarps][2][kDeltaColumns];
  float decay[kRowsAhead], written[kRowsAhead], product[kRowsAhead];
  int kept[kRowsAhead + 1];
};

__device__ __forceinline__ float sum_of_lanes(float v) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, apart));
  return v;
}
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))); }

// Returns the logarithm of the share of its state that a head keeps, which is never above 0.
__device__ __forceinline__ float log_decay(const DeltaRule& d, int row, int head) {
  const float step = __fadd_rn(d.a[int64_t{row} * d.heads + head], d.decay[d.heads + head]);
  return __fmul_rn(d.decay[head], step > 20 ? step : log1pf(expf(step)));
}
__device__ __forceinline__ float unit_factor(float squares) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(squares, 1e-6f)));
}

// A StateColumn is a thread's part of a slice.
template <int kKeys>
struct StateColumn {
  float s[kKeys];
  int first_key, column;  // the column within the head

  __device__ __forceinline__ explicit StateColumn(int slice)
      : first_key(static_cast<int>(threadIdx.x) / 32 * kKeys),
        column(slice * kDeltaColumns + static_cast<int>(threadIdx.x) % 32) {}
  __device__ __forceinline__ int64_t place(const DeltaRule& d, int head, int slot) const {
    return slot * d.matrices.apart + (int64_t{head} * d.key_dim + first_key) * d.value_dim + column;
  }
  __device__ __forceinline__ bool has(const DeltaRule& d, int i) const {
    return first_key + i < d.key_dim && column < d.value_dim;
  }
  // Reads the state of a slot, or zeros for slot -1.
  __device__ __forceinline__ void read(const DeltaRule& d, int head, int slot) {
    const float* from = d.matrices.first + place(d, head, slot);
#pragma unroll
    for (int i = 0; i < kKeys; ++i, from += d.value_dim) s[i] = slot >= 0 && has(d, i) ? *from : 0;
  }
  __device__ __forceinline__ void write(const DeltaRule& d, int head, int slot) const {
    float* to = d.matrices.first + place(d, head, slot);
#pragma unroll
    for (int i = 0; i < kKeys; ++i, to += d.value_dim)
      if (has(d, i)) *to = s[i];
  }
};

// Prepares row `row` as row `at` of the scratch: q and k divided by their norms, and the slice of v. This is the work
// of a warp.
template <int kKeys>
__device__ void prepare_row(const DeltaRule& d, int head, int row, int at, int column, RowScratch<kKeys>& m) {
  constexpr int kPadded = kKeys * kDeltaWarps, kEach = kPadded / 32;
  const int lane = threadIdx.x % 32, keys = d.heads / d.group * d.key_dim;
  const float* from = d.x + int64_t{row} * d.channels;
  const float* heads = from + head / d.group * d.key_dim;
  float q[kEach], k[kEach], q_squares = 0, k_squares = 0, both = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int key = lane + 32 * i;
    q[i] = key < d.key_dim ? heads[key] : 0;
    k[i] = key < d.key_dim ? heads[keys + key] : 0;
  }
  const float v = column < d.value_dim ? from[2 * keys + head * d.value_dim + column] : 0;
  const float decay = expf(log_decay(d, row, head)), written = sigmoid(d.b[int64_t{row} * d.heads + head]);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    q_squares = fmaf(q[i], q[i], q_squares);
    k_squares = fmaf(k[i], k[i], k_squares);
    both = fmaf(q[i], k[i], both);
  }
  both = sum_of_lanes(both);
  const float q_factor = __fmul_rn(unit_factor(sum_of_lanes(q_squares)),
                                   __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d.key_dim)))),
              k_factor = unit_factor(sum_of_lanes(k_squares));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    m.q[at][lane + 32 * i] = __fmul_rn(q[i], q_factor);
    m.k[at][lane + 32 * i] = __fmul_rn(k[i], k_factor);
  }
  m.v[at][lane] = v;
  if (lane > 0) return;
  m.decay[at] = decay;
  m.written[at] = written;
  m.product[at] = __fmul_rn(__fmul_rn(both, q_factor), k_factor);
}

// Takes a column through row `at` of the scratch, and returns what is read of it. `turn` alternates from row to row.
template <int kKeys>
__device__ __forceinline__ float take_row(StateColumn<kKeys>& state, RowScratch<kKeys>& m, int at, int turn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float4 *q = reinterpret_cast<const float4*>(&m.q[at][state.first_key]),
               *k = reinterpret_cast<const float4*>(&m.k[at][state.first_key]);
  float known = 0, read = 0;
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const float4 a = k[i], b = q[i];
    const float* s = state.s + 4 * i;
    known = fmaf(a.w, s[3], fmaf(a.z, s[2], fmaf(a.y, s[1], fmaf(a.x, s[0], known))));
    read = fmaf(b.w, s[3], fmaf(b.z, s[2], fmaf(b.y, s[1], fmaf(b.x, s[0], read))));
  }
  m.sums[turn][warp][0][lane] = known;
  m.sums[turn][warp][1][lane] = read;
  __syncthreads();
  known = read = 0;
#pragma unroll
  for (int w = 0; w < kDeltaWarps; ++w) {
    known = __fadd_rn(known, m.sums[turn][w][0][lane]);
    read = __fadd_rn(read, m.sums[turn][w][1][lane]);
  }
  const float decay = m.decay[at], change = __fmul_rn(m.written[at], fmaf(-decay, known, m.v[at][lane]));
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const float4 a = k[i];
    float* s = state.s + 4 * i;
    s[0] = fmaf(a.x, change, __fmul_rn(decay, s[0])), s[1] = fmaf(a.y, change, __fmul_rn(decay, s[1]));
    s[2] = fmaf(a.z, change, __fmul_rn(decay, s[2])), s[3] = fmaf(a.w, change, __fmul_rn(decay, s[3]));
  }
  return fmaf(m.product[at], change, __fmul_rn(decay, read));
}

// Takes a slice through rows [first, first + count), and writes it to the slots that keep it.
template <int kKeys>
__device__ void walk_rows(const DeltaRows& rows, const DeltaRule& d, int head, int first, int count,
                          StateColumn<kKeys>& state, RowScratch<kKeys>& m) {
  const int warp = threadIdx.x / 32;
  for (int done = 0; done < count; done += kRowsAhead) {
    const int ahead = min(kRowsAhead, count - done);
    __syncthreads();  // the rows before are no longer read
    if (warp < ahead) prepare_row(d, head, first + done + warp, warp, state.column, m);
    if (static_cast<int>(threadIdx.x) <= ahead) m.kept[threadIdx.x] = rows.kept[first + done + threadIdx.x];
    __syncthreads();
    for (int at = 0; at < ahead; ++at) {
      const float y = take_row(state, m, at, at % 2);
      if (warp == 0 && state.column < d.value_dim)
        d.y[(int64_t{first + done + at} * d.heads + head) * d.value_dim + state.column] = y;
      for (int i = m.kept[at]; i < m.kept[at + 1]; ++i) state.write(d, head, rows.slots[i]);
    }
  }
}

}  // namespace fidelio::cuda
