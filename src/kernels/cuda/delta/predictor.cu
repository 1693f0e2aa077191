// This file moves the rows that a predictor of the token after the next reads (op::Before, op::Carry and op::Join in
// step/op.h).
#include "kernels/cuda/delta/delta.h"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

constexpr int kMoveThreads = 256;

// Thread block (c, s) has columns [256 c, 256 c + 256) of segment s.
__global__ void __launch_bounds__(kMoveThreads)
    rows_before(DeltaRows rows, const float* x, int d, StateSlots carried, float* y) {
  begin_kernel();
  const int column = blockIdx.x * kMoveThreads + static_cast<int>(threadIdx.x);
  const DeltaSegment segment = rows.segments[blockIdx.y];
  if (column >= d) return;
  float before = segment.state < 0 ? 0 : carried.first[segment.state * carried.apart + column];
  for (int row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
    const int64_t at = int64_t{row} * d + column;
    y[at] = before;
    before = x[at];
  }
}

__global__ void __launch_bounds__(kMoveThreads) carry_rows(DeltaRows rows, const float* x, int d, StateSlots carried) {
  begin_kernel();
  const int column = blockIdx.x * kMoveThreads + static_cast<int>(threadIdx.x);
  const DeltaSegment segment = rows.segments[blockIdx.y];
  if (column >= d) return;
  for (int row = segment.first_row; row < segment.first_row + segment.rows; ++row)
    for (int i = rows.kept[row]; i < rows.kept[row + 1]; ++i)
      carried.first[rows.slots[i] * carried.apart + column] = x[int64_t{row} * d + column];
}

// Thread block (m, c) has columns [256 c, 256 c + 256) of row m of the result.
__global__ void __launch_bounds__(kMoveThreads) join_columns(const float* a, const float* b, int d, float* y) {
  begin_kernel();
  const int column = blockIdx.y * kMoveThreads + static_cast<int>(threadIdx.x);
  if (column >= 2 * d) return;
  const int64_t row = int64_t{blockIdx.x} * d;
  y[2 * row + column] = column < d ? a[row + column] : b[row + column - d];
}

unsigned blocks_of(int64_t columns) { return static_cast<unsigned>((columns + kMoveThreads - 1) / kMoveThreads); }

}  // namespace

void before(Stream stream, const DeltaRows& rows, const float* x, int64_t d, const StateSlots& carried, float* y) {
  launch("rows before", stream, dim3(blocks_of(d), static_cast<unsigned>(rows.count)), kMoveThreads, 0, rows_before,
         rows, x, static_cast<int>(d), carried, y);
}
void carry(Stream stream, const DeltaRows& rows, const float* x, int64_t d, const StateSlots& carried) {
  launch("carrying rows", stream, dim3(blocks_of(d), static_cast<unsigned>(rows.count)), kMoveThreads, 0, carry_rows,
         rows, x, static_cast<int>(d), carried);
}
void join(Stream stream, const float* a, const float* b, int64_t n, int64_t d, float* y) {
  launch("joining columns", stream, dim3(static_cast<unsigned>(n), blocks_of(2 * d)), kMoveThreads, 0, join_columns, a,
         b, static_cast<int>(d), y);
}

}  // namespace fidelio::cuda
