// This file stands in for runner_cuda.cc in builds without CUDA, so that nothing else needs to know which build it
// is.
#include "core/error.h"
#include "runtime/machine/machine.h"
#include "runtime/runner.h"

namespace fidelio {

namespace {
[[noreturn]] void refuse() {
  throw Error("this build has no CUDA backend: build with `cmake --preset cuda`, or use --device cpu");
}
}  // namespace

std::unique_ptr<Runner> make_cuda_runner(const Checkpoint&, const RunnerOptions&) { refuse(); }
CudaMemory cuda_memory(int) { refuse(); }
double cuda_copy_bandwidth(int) { refuse(); }
std::string cuda_name(int) { refuse(); }

}  // namespace fidelio
