// This file launches a NarrowProduct by itself.
#include "kernels/cuda/delta/narrow.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace fidelio::cuda {
namespace {

// Thread block (i, m) has kEach columns of row m.
template <int kEach>
__global__ void __launch_bounds__(kNarrowThreads) multiply_narrow(const __grid_constant__ NarrowProduct p) {
  __shared__ NarrowScratch<kEach> scratch;
  ptx::allow_dependents();
  NarrowColumns<kEach> columns(p, static_cast<int>(blockIdx.x) * kEach);
  ptx::dependency_wait();
  narrow_row(p, static_cast<int>(blockIdx.y), columns, scratch);
}

}  // namespace

void narrow_product(Stream stream, const NarrowProduct& p) {
  const int each = narrow_columns_each(p.rows);
  launch("a product of few outputs", stream,
         dim3(static_cast<unsigned>(narrow_blocks(p, each)), static_cast<unsigned>(p.rows)), kNarrowThreads, 0,
         each == 2 ? multiply_narrow<2> : multiply_narrow<8>, p);
}

}  // namespace fidelio::cuda
