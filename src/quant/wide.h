// FIDELIO_WIDE compiles a function with plain loops for AVX2 as well; the program chooses one of the two when it
// starts. It is for code whose products and sums are rounded one by one, so that both give the same bits. It is off
// with sanitizers, which are not yet active when the choice is made.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FIDELIO_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define FIDELIO_WIDE
#endif
