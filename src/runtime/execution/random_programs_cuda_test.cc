// The executor over a GPU computes what kernels/ref computes, over 500 random programs. Without a GPU skipped by name.
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "runtime/execution/random_program_fixture.h"

namespace fidelio {
namespace {

TEST(RandomProgramCuda, FastEqualsSlow) {
  if (const auto why = no_gpu()) GTEST_SKIP() << *why;
  RandomPrograms<Cuda> programs;
  programs.make = [](uint64_t, bool) { return Cuda(Cuda::Options{}); };
  programs.limits = {.head_multiple = 8, .column_multiple = 8, .heads_alike = true};
  programs.product_rounding = 8;  // kernels/cuda/linear/dense/exact.h
  expect_fast_equals_slow(programs);
}

}  // namespace
}  // namespace fidelio
