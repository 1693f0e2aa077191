// Plain loops that are compiled for AVX2 too; which of the two runs is chosen when the program starts. For code whose
// products and sums are rounded one by one, so that both give the same bits. Not with sanitizers, which are not there
// yet when the choice is made.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FIDELIO_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define FIDELIO_WIDE
#endif
