// This file loads OpenBLAS when something computes with it for the first time, and not with the program. A linked
// library would start a thread for each core and take memory for each before main(), whatever the program is asked to
// do. If the address space is too small for that memory (ulimit -v), it waits without end, so no verb of the program
// would end.
//
// Every call runs on the calling thread alone, and jobs of fixed size in a ThreadPool call it, so results do not
// depend on the number of threads.
#pragma once
#include <cblas.h>

namespace fidelio::train {

struct Blas {
  decltype(&::cblas_sgemm) sgemm = nullptr;
  decltype(&::cblas_dgemm) dgemm = nullptr;
};
extern Blas blas;  // valid after load_blas()

// Loads the library for up to `threads` threads at a time. Throws Error if the library is missing or its memory
// cannot be had.
void load_blas(int threads);

}  // namespace fidelio::train
