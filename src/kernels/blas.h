// OpenBLAS under our own threads: every call runs on the calling thread alone, and ThreadPool jobs of fixed size call
// it, so results do not depend on the number of threads. Call use_single_threaded_blas() before the first BLAS call:
// OpenBLAS would otherwise start threads of its own inside each of ours.
#pragma once
#include <cblas.h>

#include <mutex>

namespace fidelio {

inline void use_single_threaded_blas() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

}  // namespace fidelio
