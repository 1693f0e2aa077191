#include "kernels/cuda/linear/prefill/lowbit_many_integers.cuh"

namespace fidelio::cuda {
namespace {

template <typename Traits>
__global__ void __launch_bounds__(384, 1) many_integers_kernel(const __grid_constant__ ManyArguments p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t unaligned[];
  uint8_t* shared = unaligned + (1024 - ptx::shared_address(unaligned) % 1024) % 1024;
  using Rows = IntegerRows<Traits>;
  const uint32_t barriers = ptx::shared_address(shared) + Rows::kStages * Rows::kRowBytes;
  const IntegerRing<Traits> ring{{ptx::shared_address(shared), barriers, barriers + Rows::kStages * 8}};
  run_many_roles(
      ring, [&](int rank) { ask_for_integers<Traits>(p, ring, rank); },
      [&](int rank) { multiply_many_integers<Traits>(p, ring, shared, rank); });
#endif
}

template <int bits, bool byte_scale>
void launch_bits(Stream stream, const ManyArguments& p) {
  using Traits = CodeTraits<CodeKind::integer, bits, byte_scale, 4>;
  using Rows = IntegerRows<Traits>;
  const auto kernel = many_integers_kernel<Traits>;
  static const cudaError_t allowed = allow_shared(kernel, Rows::kBytes);
  cuda_check(allowed, "allowing a product of many rows its shared memory");
  launch_many_kernel<Rows::kBytes>(kernel, ManyGrid(p, Rows::kTokens).clusters, stream, p);
}

}  // namespace

void launch_many_integers(Stream stream, const ManyArguments& p, const LowbitShape& shape) {
  const auto run = shape.bits == 4 ? (shape.byte_scale ? launch_bits<4, true> : launch_bits<4, false>)
                                   : (shape.byte_scale ? launch_bits<8, true> : launch_bits<8, false>);
  run(stream, p);
}

}  // namespace fidelio::cuda
