// This file convolves the columns of rows over a sequence's positions. A thread has a column.
//
// A kernel of kMost weights does what one of fewer weights asks for, with zeros in front of them. A row's sum begins
// with its oldest input, wherever that comes from, so its bits do not depend on how a sequence is cut into batches.
//
// A NarrowProduct of the same rows can go along with a convolution of output rows, in thread blocks of its own.
#include "kernels/cuda/delta/delta.h"
#include "kernels/cuda/delta/narrow.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/layout/prepare.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kConvolveThreads = 256, kRowsOfBlock = 16;
constexpr int kInputsAhead = 4;  // rows that are read before the first of them is written

template <int kMost>
struct Window {
  static constexpr int kBefore = kMost - 1;
  float w[kMost], last[kBefore];  // the weights, and the inputs before a row with the oldest first
  int missing, column;

  __device__ __forceinline__ Window(const Convolution& c, int column) : missing(kMost - c.kernel), column(column) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) w[i] = i < missing ? 0 : c.w[int64_t{column} * c.kernel + i - missing];
  }
  __device__ __forceinline__ const float* state_of(const Convolution& c, int slot) const {
    return c.inputs.first + slot * c.inputs.apart + column;
  }
  // Reads the inputs before row `row` of a segment: rows of the batch, and before the segment those of its state.
  __device__ __forceinline__ void read_batch(const Convolution& c, const DeltaSegment& segment, int row) {
#pragma unroll
    for (int i = 0; i < kBefore; ++i) {
      const int at = row - kBefore + i;
      if (i >= missing && at >= segment.first_row) last[i] = c.x[int64_t{at} * c.channels + column];
    }
  }
  __device__ __forceinline__ void read_state(const Convolution& c, const DeltaSegment& segment, int row) {
#pragma unroll
    for (int i = 0; i < kBefore; ++i) {
      const int at = row - kBefore + i - segment.first_row;  // from -(kernel - 1) on in the state
      last[i] = i >= missing && at < 0 && segment.state >= 0
                    ? state_of(c, segment.state)[int64_t{at + c.kernel - 1} * c.channels]
                    : 0;
    }
  }
  __device__ __forceinline__ float sum(float newest) const {
    float s = __fmul_rn(w[0], kBefore > 0 ? last[0] : newest);
#pragma unroll
    for (int i = 1; i < kBefore; ++i) s = fmaf(w[i], last[i], s);
    return fmaf(w[kBefore], newest, s);
  }
  __device__ __forceinline__ void push(float newest) {
#pragma unroll
    for (int i = 0; i + 1 < kBefore; ++i) last[i] = i < missing ? 0 : last[i + 1];
    last[kBefore - 1] = newest;
  }
  // Takes rows [first, last), and calls after(row) behind each.
  template <typename After>
  __device__ __forceinline__ void take(const Convolution& c, int first, int last, const After& after) {
    for (int row = first; row < last; row += kInputsAhead) {
      float newest[kInputsAhead];
#pragma unroll
      for (int i = 0; i < kInputsAhead; ++i)
        newest[i] = row + i < last ? c.x[int64_t{row + i} * c.channels + column] : 0;
#pragma unroll
      for (int i = 0; i < kInputsAhead; ++i) {
        if (row + i >= last) break;
        c.y[int64_t{row + i} * c.channels + column] = silu(sum(newest[i]));
        push(newest[i]);
        after(row + i);
      }
    }
  }
  __device__ __forceinline__ void keep(const Convolution& c, int slot) const {
    float* to = c.inputs.first + slot * c.inputs.apart + column;
#pragma unroll
    for (int i = 0; i < kBefore; ++i)
      if (i >= missing) to[int64_t{i - missing} * c.channels] = last[i];
  }
};

// Thread block (i, j) has 256 columns of segment j, whose rows a thread takes one after the other. So a state may be
// written where it was read. It is read while the kernel in front still runs, as in delta_rows.cu. The thread blocks
// behind the `own` first ones have kEach columns each of the product that goes along, if kEach is not 0.
template <int kMost, int kEach>
__global__ void __launch_bounds__(kConvolveThreads)
    convolve_segments(const __grid_constant__ DeltaRows rows, const __grid_constant__ Convolution c, int own,
                      const __grid_constant__ NarrowProduct along) {
  ptx::allow_dependents();
  const DeltaSegment segment = rows.segments[blockIdx.y];
  if constexpr (kEach > 0) {
    if (const int i = static_cast<int>(blockIdx.x) - own; i >= 0) {
      __shared__ NarrowScratch<kEach> scratch;
      NarrowColumns<kEach> columns(along, i * kEach);
      ptx::dependency_wait();
      for (int row = 0; row < segment.rows; ++row) narrow_row(along, segment.first_row + row, columns, scratch);
      return;
    }
  }
  const int column = static_cast<int>(blockIdx.x * kConvolveThreads + threadIdx.x);
  const bool has = column < c.channels && segment.rows > 0;
  Window<kMost> window(c, min(column, c.channels - 1));
  if (has) window.read_state(c, segment, segment.first_row);
  ptx::dependency_wait();
  if (!has) return;
  window.take(c, segment.first_row, segment.first_row + segment.rows, [&](int row) {
    for (int i = rows.kept[row]; i < rows.kept[row + 1]; ++i) window.keep(c, rows.slots[i]);
  });
}

// Thread block (i, j, k) has 256 columns of rows 16 k, 16 k + 1, ... of segment j.
template <int kMost>
__global__ void __launch_bounds__(kConvolveThreads)
    convolve_rows(const __grid_constant__ DeltaRows rows, const __grid_constant__ Convolution c) {
  begin_kernel();
  const DeltaSegment segment = rows.segments[blockIdx.y];
  const int column = static_cast<int>(blockIdx.x * kConvolveThreads + threadIdx.x);
  const int first = static_cast<int>(blockIdx.z) * kRowsOfBlock, last = min(first + kRowsOfBlock, segment.rows);
  if (column >= c.channels || first >= last) return;
  Window<kMost> window(c, column);
  window.read_state(c, segment, segment.first_row + first);
  window.read_batch(c, segment, segment.first_row + first);
  window.take(c, segment.first_row + first, segment.first_row + last, [](int) {});
}

// Writes the states after rows. It is launched behind convolve_rows(), since a state may be written where it was read.
// A thread reads the oldest inputs before it writes any.
template <int kMost>
__global__ void __launch_bounds__(kConvolveThreads)
    keep_inputs(const __grid_constant__ DeltaRows rows, const __grid_constant__ Convolution c) {
  begin_kernel();
  const DeltaSegment segment = rows.segments[blockIdx.y];
  const int column = static_cast<int>(blockIdx.x * kConvolveThreads + threadIdx.x);
  const int end = segment.first_row + segment.rows;
  if (column >= c.channels || segment.rows == 0 || rows.kept[segment.first_row] == rows.kept[end]) return;
  Window<kMost> window(c, column);
  window.read_state(c, segment, segment.first_row);
  int row = segment.first_row;
  // The first rows, behind which a state has inputs of the state before, are taken one by one.
  for (; row < min(segment.first_row + c.kernel - 1, end); ++row) {
    window.push(c.x[int64_t{row} * c.channels + column]);
    for (int i = rows.kept[row]; i < rows.kept[row + 1]; ++i) window.keep(c, rows.slots[i]);
  }
  for (; row < end; ++row) {
    if (rows.kept[row] == rows.kept[row + 1]) continue;
    window.read_batch(c, segment, row + 1);
    for (int i = rows.kept[row]; i < rows.kept[row + 1]; ++i) window.keep(c, rows.slots[i]);
  }
}

template <int kMost>
void launch_convolution(Stream stream, const DeltaRows& rows, const Convolution& c, const NarrowProduct& along) {
  static_assert(kNarrowThreads == kConvolveThreads);
  const int own = (c.channels + kConvolveThreads - 1) / kConvolveThreads, each = narrow_columns_each(along.rows);
  const dim3 segments(static_cast<unsigned>(own), static_cast<unsigned>(rows.count));
  dim3 all = segments;
  if (!c.of_prompt) {
    all.x += static_cast<unsigned>(narrow_blocks(along, each));
    const auto kernel = along.count == 0 ? convolve_segments<kMost, 0>
                        : each == 2      ? convolve_segments<kMost, 2>
                                         : convolve_segments<kMost, 8>;
    return launch("a convolution", stream, all, kConvolveThreads, 0, kernel, rows, c, own, along);
  }
  all.z = static_cast<unsigned>((c.n + kRowsOfBlock - 1) / kRowsOfBlock);
  launch("a convolution", stream, all, kConvolveThreads, 0, convolve_rows<kMost>, rows, c);
  launch("keeping inputs", stream, segments, kConvolveThreads, 0, keep_inputs<kMost>, rows, c);
}

}  // namespace

void convolve(Stream stream, const DeltaRows& rows, const Convolution& c, const NarrowProduct& along) {
  if (c.kernel <= 4) return launch_convolution<4>(stream, rows, c, along);
  launch_convolution<kWidestConvolution>(stream, rows, c, along);
}

}  // namespace fidelio::cuda
