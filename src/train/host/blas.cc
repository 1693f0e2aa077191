#include "train/host/blas.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/error.h"

namespace fidelio::train {

Blas blas;

namespace {

// OpenBLAS takes this much address space for each thread that calls it at the same time (its BUFFER_SIZE). It asks
// again and again until it gets it, so the program checks beforehand that it is available.
constexpr size_t kBlasBytes = size_t{128} << 20;

void check_blas_memory(int threads) {
  const size_t bytes = kBlasBytes * static_cast<size_t>(threads);
  void* const room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(room != MAP_FAILED,
        "no room for the products of {} threads: expected {} MiB of address space for OpenBLAS (128 a thread), got {}; "
        "give fewer --threads, or raise the limit (ulimit -v)",
        threads, bytes >> 20, std::strerror(errno));
  ::munmap(room, bytes);
}

template <typename F>
F symbol_of(void* library, const char* name) {
  void* const found = ::dlsym(library, name);
  check(found != nullptr, "libopenblas.so.0 has no {}: expected OpenBLAS with its C interface", name);
  return reinterpret_cast<F>(found);
}

void open_blas() {
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);  // it is read while the library is loaded, which then starts no threads
  void* const library = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw Error("tuning on a CPU needs OpenBLAS, which cannot be loaded ({}): install libopenblas0", why ? why : "");
  }
  // For builds of the library that use OpenMP.
  symbol_of<decltype(&::openblas_set_num_threads)>(library, "openblas_set_num_threads")(1);
  blas.sgemm = symbol_of<decltype(blas.sgemm)>(library, "cblas_sgemm");
  blas.dgemm = symbol_of<decltype(blas.dgemm)>(library, "cblas_dgemm");
}

}  // namespace

void load_blas(int threads) {
  check_blas_memory(threads);
  static std::once_flag once;
  std::call_once(once, open_blas);
}

}  // namespace fidelio::train
