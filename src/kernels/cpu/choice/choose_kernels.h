// This file lists the vector functions that choosing a token needs: one table for each instruction set, as in
// kernel_set.h. choose_body.h is written once over simd.h and included by choose_{portable,avx2,avx512}.cc.
#pragma once
#include <cstdint>

namespace fidelio::cpu {

struct RowRange {
  float top, lowest;
  bool orderable;  // no NaN, no +infinity
};

// Distances give how far tokens are below the best (choice_arithmetic.h).
struct Distances {
  float top, scale;
};

struct NearTokens {
  float cut, least;
  int64_t room, count;
};

// Starters are the tokens that take part in the race (choice_race.h): those at most `farthest` halvings below the
// best, and as good as the last kept one or better.
struct Starters {
  float farthest, last;  // a logit
  int32_t last_id;
};

// ChoiceBins count a row's tokens by their distance, so many bins a halving; the last bin is open.
constexpr int kChoiceBins = 2048;
struct ChoiceBins {
  float per_halving;
  uint64_t weight[kChoiceBins];
  uint32_t count[kChoiceBins];
};

struct ChoiceKernels {
  RowRange (*range)(const float* x, int64_t n);
  int64_t (*find)(const float* x, int64_t n, float value);  // the first that equals value; n if none does
  // Returns the sum of weights. Leaves the places of tokens at most near->cut halvings below the best in `found`, in
  // order, and their number in near->count. While there are more than near->room, which `found` exceeds by
  // kChoiceSlack, the cut is made smaller, down to near->least; below that it becomes negative and nothing is found.
  uint64_t (*weigh)(const float* x, int64_t n, Distances d, NearTokens* near, int32_t* found);
  // Returns the id that wins the race of these tokens, or -1 if none takes part; without `ids` a token's place is its
  // id.
  int32_t (*race)(const float* x, const int32_t* ids, int64_t n, Distances d, const Starters& starters,
                  uint64_t random);
  // Adds tokens to bins.
  void (*fill)(const float* x, int64_t n, Distances d, ChoiceBins* bins);
  // Finds the places of the tokens of one bin, in order, and returns their number; `found` has room for n +
  // kChoiceSlack.
  int64_t (*gather)(const float* x, int64_t n, Distances d, float per_halving, int32_t bin, int32_t* found);
};
constexpr int64_t kChoiceSlack = 16;

extern const ChoiceKernels kChoicePortable;
#if defined(__x86_64__)
extern const ChoiceKernels kChoiceAvx2, kChoiceAvx512;
#endif

}  // namespace fidelio::cpu
