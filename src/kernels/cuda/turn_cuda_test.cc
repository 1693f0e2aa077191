// Turned activations on the GPU against kernels/ref. Without a GPU the test is skipped by name.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/ref/ref.h"

namespace fidelio {
namespace {

TEST(Turn, AgreesWithTheReferenceAndRowsDoNotDependOnTheBatch) {
  std::unique_ptr<Cuda> b;
  try {
    b = std::make_unique<Cuda>(Cuda::Options{});
  } catch (const Error& e) {
    GTEST_SKIP() << "no GPU: " << e.what();
  }
  const AttentionShape shape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};
  Rng rng(5);
  const auto normals = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = static_cast<float>(rng.normal());
    return values;
  };
  // Heads among each other, whole widths with and without a dense factor, more than 48 KB, blocks.
  for (const Hadamard& how : {hadamard_for(8, 64), hadamard_for(12, 128), hadamard_for(1280), hadamard_for(2048),
                              hadamard_for(14336), hadamard_for(156), hadamard_for(344)}) {
    const int64_t n = 5, K = how.columns;
    const std::vector<float> x = normals(n * K), gate = normals(n * K);
    const std::vector<float> signs(how.signs.begin(), how.signs.end());
    Cuda::Matrix core = b->allocate(how.core, how.core);
    if (how.core > 1) b->upload(signs, core);
    // Rows [first, first + count), fresh from the gate as in a forward.
    const auto turned = [&](int64_t first, int64_t count, std::vector<double>* before) {
      b->reserve(count, K, 128);
      Batch batch;
      std::vector<int32_t> ids(static_cast<size_t>(count)), pages = {0};
      batch.append(ids, 0, pages, count, RowKind::output);
      b->begin(batch, Activations::a16, shape);
      Cuda::Matrix up = b->allocate(count, K), of = b->allocate(count, K);
      b->upload({x.data() + first * K, static_cast<size_t>(count * K)}, up);
      b->upload({gate.data() + first * K, static_cast<size_t>(count * K)}, of);
      std::vector<float> values(static_cast<size_t>(count * K));
      if (before) {
        b->read(b->gated(of, up, Gate::silu), values);
        before->assign(values.begin(), values.end());
      }
      b->read(b->turn(b->gated(of, up, Gate::silu), how, core), values);
      return values;
    };
    std::vector<double> before;
    const std::vector<float> got = turned(0, n, &before);
    const std::vector<double> want = ref::turned(before, how, n);
    // m sums and differences, K sums of the dense factor, the scale and its own rounding, of |x| summed over the block.
    const double roundings = std::log2(static_cast<double>(how.doubled)) + static_cast<double>(how.core) + 2;
    for (int64_t i = 0; i < n * K; ++i) {
      const int64_t block = i / how.block() * how.block();
      double sum = 0;
      for (int64_t j = i % how.stride; j < how.block(); j += how.stride) sum += std::abs(before[block + j]);
      ASSERT_NEAR(got[i], want[i], roundings * 0x1p-24 * sum * how.scale()) << K << " " << i;
    }
    for (int64_t row = 0; row < n; ++row)
      EXPECT_EQ(turned(row, 1, nullptr), std::vector<float>(got.begin() + row * K, got.begin() + (row + 1) * K)) << K;
  }
}

}  // namespace
}  // namespace fidelio
