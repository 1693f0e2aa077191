// OpenBLAS, loaded by whoever computes with it first, and not with the program. A library that is linked starts a thread a
// core and takes memory for each of them before main(), whatever the program is asked to do, and where an address space is
// too small for that memory (ulimit -v), it waits for it without end: then no verb ended.
//
// Every call runs on the calling thread alone, and ThreadPool jobs of fixed size call it, so results do not depend on the
// number of threads.
#pragma once
#include <cblas.h>

namespace fidelio::train {

struct Blas {
  decltype(&::cblas_sgemm) sgemm = nullptr;
  decltype(&::cblas_dgemm) dgemm = nullptr;
};
extern Blas blas;  // after load_blas()

// For up to so many threads at a time. Throws Error where the library is missing or its memory cannot be had.
void load_blas(int threads);

}  // namespace fidelio::train
