// This file has the operations of the Cuda backend that a gated delta net needs (op::Convolve, op::DeltaRule and
// op::GatedNorm in step/program.h), and those of a gate on attention's output.
#include "core/error.h"
#include "kernels/cuda/backend/cuda.h"

namespace fidelio {
namespace {

[[noreturn]] void refuse() {
  throw Error("the CUDA backend does not run gated delta nets yet: run this model with --device cpu");
}

}  // namespace

Cuda::States Cuda::allocate_states(const StateShape& shape, int64_t) {
  if (shape.layers > 0) refuse();
  return {};
}
void Cuda::split_gate(const Matrix&, Matrix&, Matrix&) { refuse(); }
Cuda::Acts Cuda::gate_heads(Acts, const Matrix&) { refuse(); }
void Cuda::add_shared(const Matrix&, const Matrix&, Matrix&) { refuse(); }
void Cuda::convolve(const Matrix&, const Matrix&, Matrix&, States&, int) { refuse(); }
void Cuda::delta_rule(const Matrix&, const Matrix&, const Matrix&, const Matrix&, Matrix&, States&, int) { refuse(); }
Cuda::Acts Cuda::gated_norm(const Matrix&, const Matrix&, const Matrix&, float, Gate) { refuse(); }

}  // namespace fidelio
