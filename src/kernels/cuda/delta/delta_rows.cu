// This file has the delta rule for output rows: one after the other, as delta_rows.cuh says.
#include "kernels/cuda/delta/delta_rows.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

// Thread block (i, j) has a head's slice of segment j. The states of a step's beginning were written by steps before,
// and the kernel that writes them again is this one, so they are read while the kernel in front still runs.
template <int kKeys>
__global__ void __launch_bounds__(kDeltaThreads, kKeys <= 16 ? 3 : 1)
    walk_segments(const __grid_constant__ DeltaRows rows, const __grid_constant__ DeltaRule d, int slices) {
  __shared__ RowScratch<kKeys> scratch;
  ptx::allow_dependents();
  const int head = static_cast<int>(blockIdx.x) / slices;
  const DeltaSegment segment = rows.segments[blockIdx.y];
  StateColumn<kKeys> state(static_cast<int>(blockIdx.x) % slices);
  if (segment.rows > 0) state.read(d, head, segment.state);
  ptx::dependency_wait();
  walk_rows(rows, d, head, segment.first_row, segment.rows, state, scratch);
}

}  // namespace

void delta_rows(Stream stream, const DeltaRows& rows, const DeltaRule& d) {
  const int slices = (d.value_dim + kDeltaColumns - 1) / kDeltaColumns;
  const auto with = [&](auto kernel) {
    launch("a delta rule", stream, dim3(static_cast<unsigned>(d.heads * slices), static_cast<unsigned>(rows.count)),
           kDeltaThreads, 0, kernel, rows, d, slices);
  };
  if (d.key_dim <= 32) return with(walk_segments<4>);
  if (d.key_dim <= 64) return with(walk_segments<8>);
  if (d.key_dim <= 128) return with(walk_segments<16>);
  with(walk_segments<32>);
}

}  // namespace fidelio::cuda
