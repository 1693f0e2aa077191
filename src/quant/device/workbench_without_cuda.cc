// This file replaces workbench_cuda.cc in builds without CUDA.
#include "quant/device/workbench.h"

namespace fidelio {

std::unique_ptr<Workbench> make_cuda_workbench(int, ThreadPool&) {
  throw Error("this build has no CUDA backend: build with `cmake --preset cuda`, or use --device cpu");
}

}  // namespace fidelio
