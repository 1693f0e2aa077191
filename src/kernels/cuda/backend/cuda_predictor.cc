// This file has the operations of the Cuda backend that a predictor of the token after the next needs (op::Before,
// op::Carry and op::Join in step/op.h).
#include "core/error.h"
#include "kernels/cuda/backend/cuda.h"

namespace fidelio {
namespace {

[[noreturn]] void refuse_predictor() {
  throw Error("the CUDA backend does not draft with a model's predictor yet: leave out --draft mtp");
}

}  // namespace

void Cuda::before(const Matrix&, Matrix&, States&) { refuse_predictor(); }
void Cuda::carry(const Matrix&, States&) { refuse_predictor(); }
Cuda::Acts Cuda::join(const Matrix&, const Matrix&) { refuse_predictor(); }

}  // namespace fidelio
