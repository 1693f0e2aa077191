// These tests compare Hadamard transforms and reordered columns on the GPU with kernels/ref. Without a GPU they are
// skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "kernels/cuda/backend/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/ref/ref.h"

namespace fidelio {
namespace {

TEST(Turn, AgreesWithTheReferenceAndRowsDoNotDependOnTheBatch) {
  std::unique_ptr<Cuda> b;
  if (const auto why = no_gpu()) GTEST_SKIP() << *why;
  b = std::make_unique<Cuda>(Cuda::Options{});
  const AttentionShape shape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};
  Rng rng(5);
  const auto normals = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = static_cast<float>(rng.normal());
    return values;
  };
  // These cover transforms across heads, whole widths with and without a dense factor, rows of more than 48 KB, and
  // blocks.
  for (const Hadamard& how : {hadamard_for(8, 64), hadamard_for(12, 128), hadamard_for(1280), hadamard_for(2048),
                              hadamard_for(14336), hadamard_for(156), hadamard_for(344)}) {
    const int64_t n = 5, K = how.columns;
    const std::vector<float> x = normals(n * K), gate = normals(n * K);
    const std::vector<float> signs(how.signs.begin(), how.signs.end());
    Cuda::Matrix core = b->allocate(how.core, how.core);
    if (how.core > 1) b->upload(signs, core);
    // Returns rows [first, first + count) after the transform, made by a gate just before as in a step.
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
        b->read(b->gated(of, up, Gate::silu, count), values);
        before->assign(values.begin(), values.end());
      }
      b->read(b->turn(b->gated(of, up, Gate::silu, count), how, core), values);
      return values;
    };
    std::vector<double> before;
    const std::vector<float> got = turned(0, n, &before);
    const std::vector<double> want = ref::turned(before, how, n);
    // There are m sums and differences, K sums of the dense factor, and the roundings of the scale and of the product
    // by it. Each is at most u times |x| summed over the block.
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

// The columns are put in another order, with the last group twice. The values must agree bit for bit. In a product
// with 4-bit activations all columns but the kept ones are clipped. Both sides multiply integers under FP16 scales,
// so a value is off by at most 2^-12 for its rounding to FP16, and a sum by the bound of kernels_cuda_test.cc.
TEST(Gather, AgreesWithThePlainTwinAndRowsDoNotDependOnTheBatch) {
  std::unique_ptr<Cuda> b;
  if (const auto why = no_gpu()) GTEST_SKIP() << *why;
  b = std::make_unique<Cuda>(Cuda::Options{});
  const AttentionShape shape{{{}}, {{std::vector<float>(32, 0.0f), 1.0f}}, 4, 2, 64, 1e-5f};
  Rng rng(7);
  for (const int64_t kept : {32, 64, 128}) {
    const int64_t n = 37, in = 640, all = in + kept, others = in - kept, out = 96;
    std::vector<float> x(static_cast<size_t>(n * in));
    for (float& value : x) value = static_cast<float>(rng.normal());
    std::vector<int32_t> order(static_cast<size_t>(in));
    for (int64_t i = 0; i < in; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>((i * 37 + 11) % in);
    order.resize(static_cast<size_t>(all));
    std::copy_n(order.begin() + others, kept, order.begin() + in);
    LinearWeight weight =
        allocate_weight({.kind = Kind::integer, .bits = 4, .group = static_cast<int>(kept)}, out, all);
    for (const StoredTensor& t : stored_tensors(weight)) {
      if (t.tensor.dtype == DType::u8)
        for (uint8_t& v : t.tensor.as<uint8_t>()) v = static_cast<uint8_t>(rng.below(256));
      else
        for (f16& v : t.tensor.as<f16>()) v = to_f16(static_cast<float>(0.005 + 0.01 * rng.uniform()));
    }
    const Cuda::Linear packed = b->pack(weight);
    b->reserve(n, all, 128);
    const Cuda::Order how = b->make_order(order, kept);
    // Returns rows [first, first + count) after gather(), and the product of them.
    const auto run = [&](int64_t first, int64_t count, Activations mode, RowKind kind) {
      Batch batch;
      std::vector<int32_t> ids(static_cast<size_t>(count)), pages = {0, 1};
      batch.append(ids, 0, pages, count, kind);
      b->begin(batch, mode, shape);
      Cuda::Matrix given = b->allocate(count, in), y = b->allocate(count, out);
      b->upload({x.data() + first * in, static_cast<size_t>(count * in)}, given);
      const Cuda::Acts acts = b->gather(b->input(given), how);
      std::vector<float> gathered(static_cast<size_t>(count * all)), product(static_cast<size_t>(count * out));
      b->linear(acts, std::array{std::pair<const Cuda::Linear*, Cuda::Matrix*>{&packed, &y}});
      b->download(y, 0, count, product);
      b->begin(batch, mode, shape);
      b->read(b->gather(b->input(given), how), gathered);
      return std::pair(gathered, product);
    };
    const std::vector<float> decoded = decode(weight);
    const std::vector<double> w(decoded.begin(), decoded.end());
    for (const auto& [mode, bits] : {std::pair{Activations::a16, 16}, {Activations::a8, 8}, {Activations::a4, 4}})
      for (const RowKind kind : {RowKind::output, RowKind::prompt}) {
        std::vector<float> want;
        std::vector<double> seen;
        for (int64_t m = 0; m < n; ++m)
          for (int64_t first = 0; first < all; first += kept) {
            std::vector<float> group(static_cast<size_t>(kept));
            for (int64_t i = 0; i < kept; ++i) group[i] = x[m * in + order[first + i]];
            float largest = 0;
            for (const float value : group) largest = std::max(largest, std::abs(value));
            if (bits == 4 && first < others)
              for (float& value : group) value = std::clamp(value, -kGroupClip * largest, kGroupClip * largest);
            want.insert(want.end(), group.begin(), group.end());
            const std::vector<double> wide(group.begin(), group.end()),
                rounded = bits == 16 ? wide : ref::rounded(wide, 1, kept, kept, first < others ? bits : 8);
            seen.insert(seen.end(), rounded.begin(), rounded.end());
          }
        const auto [gathered, product] = run(0, n, mode, kind);
        EXPECT_EQ(gathered, want) << kept << " " << name_of(mode);
        const std::vector<double> exact = ref::linear(seen, w, {}, n, all, out);
        for (int64_t m = 0; m < n; ++m)
          for (int64_t o = 0; o < out; ++o) {
            double magnitude = 0;
            for (int64_t k = 0; k < all; ++k) magnitude += std::abs(seen[m * all + k] * w[o * all + k]);
            ASSERT_NEAR(product[m * out + o], exact[m * out + o], (0x1p-11 + 2 * 48 * 0x1p-23) * magnitude)
                << kept << " " << name_of(mode) << " row " << m;
          }
        for (const int64_t row : {int64_t{0}, int64_t{20}, n - 1}) {
          const auto [one, alone] = run(row, 1, mode, kind);
          EXPECT_EQ(one, std::vector<float>(want.begin() + row * all, want.begin() + (row + 1) * all));
          EXPECT_EQ(alone, std::vector<float>(product.begin() + row * out, product.begin() + (row + 1) * out));
        }
      }
  }
}

}  // namespace
}  // namespace fidelio
