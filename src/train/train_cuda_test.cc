// These tests compare the GPU's operations with the host's in FP32. Every result for the same inputs must be within
// what the order of sums allows.
#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "runtime/runner.h"
#include "train/cuda/gpu.h"
#include "train/host/host.h"
#include "train/network.h"
#include "train/tape.h"

namespace fidelio::train {
namespace {

std::unique_ptr<Gpu> open_gpu(cuda::Arithmetic arithmetic = cuda::Arithmetic::fp32) {
  try {
    return std::make_unique<Gpu>(0, arithmetic);
  } catch (const Error&) {
    return nullptr;
  }
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// Returns the losses, and the gradients of every tensor, of a model whose weights are some per cent off, on one
// device.
template <class D>
std::map<std::string, std::vector<float>> gradients(D& device, const Checkpoint& checkpoint, const LossMix& mix) {
  const ModelConfig& config = checkpoint.config();
  DenseNetwork<D> student(device, checkpoint, true);
  const DenseNetwork<D> teacher(device, checkpoint, false);
  Rng rng(4);
  for (const auto& t : student.tensors()) {
    std::vector<float> values(static_cast<size_t>(t.n));
    device.download(t.value.get(), values);
    for (float& x : values) x *= 1 + 0.05f * static_cast<float>(rng.normal());
    device.upload(values, t.value.get());
  }
  Sequences sequences;
  for (const int64_t length : {70, 1, 20}) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(config.v)));
    sequences.append(ids);
  }
  const auto rows = device.load(sequences);
  Tape<D> tape(device, config, rows.rows());
  tape.set_labels(rows.labels());
  student.zero_gradients();
  const float* theirs = tape.forward(teacher.view(), rows, false);
  const float* ours = tape.forward(student.view(), rows, true);
  const LossSums sums = tape.losses(student.view(), &teacher.view(), theirs, rows, ours, mix, 0.01);
  tape.backward(student.view(), rows);
  std::map<std::string, std::vector<float>> all;
  for (const double loss : sums.loss) all["losses"].push_back(static_cast<float>(loss));
  for (const auto& t : student.tensors())
    device.download(t.gradient.get(), all[t.name] = std::vector<float>(static_cast<size_t>(t.n)));
  return all;
}

// There are at most K = 80 terms, two layers, and some fifteen operations in a layer. The FP32 eps of 6e-8 is
// multiplied by the root of terms and operations, and a softmax doubles it here and there. A wrong term would be of
// the order of 1.
TEST(TrainCuda, GradientsOfEveryFamily) {
  const auto gpu = open_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  Host<float> host(2);
  for (const std::string name : {"llama2", "mistral", "qwen2", "qwen3"}) {
    const Checkpoint checkpoint = Checkpoint::open(FIDELIO_SOURCE_DIR "/tests/models/" + name);
    for (const LossMix mix : {LossMix{1, 0, 0}, LossMix{.3, .6, .2}}) {
      const auto expected = gradients(host, checkpoint, mix), got = gradients(*gpu, checkpoint, mix);
      for (const auto& [tensor, values] : expected)
        EXPECT_LT(relative_distance(got.at(tensor), values), 1e-4) << name << " " << tensor;
      EXPECT_EQ(gradients(*gpu, checkpoint, mix), got) << name;  // the same bits again
    }
  }
}

// Factors of products are rounded to 11 bits (TF32) or 8 (BF16). Half a unit in the last place is at most eps = 2^-11
// or 2^-8 of a value. Some thirty roundings follow each other between a weight and its gradient; they add up as their
// root, to 6 eps. A softmax near its tops doubles that here and there. The loss is a small difference of large
// logits: its gradient q - p carries the logits' error, which is relatively ten times as large for models that are
// some per cent apart.
TEST(TrainCuda, RoundedProductsStayNear) {
  Host<float> host(2);
  for (auto [arithmetic, eps] : {std::pair{cuda::Arithmetic::tf32, 0x1p-11}, {cuda::Arithmetic::bf16, 0x1p-8}}) {
    const auto gpu = open_gpu(arithmetic);
    if (!gpu) GTEST_SKIP() << "no GPU";
    for (const std::string name : {"llama2", "qwen3"}) {
      const Checkpoint checkpoint = Checkpoint::open(FIDELIO_SOURCE_DIR "/tests/models/" + name);
      const LossMix mix{.2, .2, .6};
      const auto expected = gradients(host, checkpoint, mix), got = gradients(*gpu, checkpoint, mix);
      for (const auto& [tensor, values] : expected)
        EXPECT_LT(relative_distance(got.at(tensor), values), 2 * 10 * 6 * eps) << name << " " << tensor;
      EXPECT_EQ(gradients(*gpu, checkpoint, mix), got) << name;  // the same bits again
    }
  }
}

// Returns the outputs and gradients of attention, for sequences long enough for several blocks of queries, two of
// them equally long, with and without shared keys and windows.
template <class D>
std::vector<std::vector<float>> attention(D& device, const AttentionSizes& sizes) {
  Sequences sequences;
  for (const size_t length : {300, 37, 513, 300, 128, 516}) sequences.append(std::vector<int32_t>(length));
  const auto rows = device.load(sequences);
  const int64_t n = rows.rows(), wide = sizes.h * sizes.e, narrow = sizes.hk * sizes.e;
  Rng rng(6);
  const auto random = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) x = static_cast<float>(rng.normal());
    auto array = device.allocate(count);
    device.upload(values, array.get());
    return array;
  };
  const auto q = random(n * wide), k = random(n * narrow), v = random(n * narrow), dout = random(n * wide),
             out = device.allocate(n * wide), lse = device.allocate(n * sizes.h), dq = device.allocate(n * wide),
             dk = device.allocate(n * narrow), dv = device.allocate(n * narrow);
  device.attend(rows, sizes, q.get(), k.get(), v.get(), out.get(), lse.get());
  device.attend_backward(rows, sizes, q.get(), k.get(), v.get(), out.get(), lse.get(), dout.get(), dq.get(), dk.get(),
                         dv.get());
  std::vector<std::vector<float>> all;
  for (auto [array, count] :
       {std::pair{&out, n * wide}, {&lse, n * sizes.h}, {&dq, n * wide}, {&dk, n * narrow}, {&dv, n * narrow}})
    device.download(array->get(), all.emplace_back(static_cast<size_t>(count)));
  return all;
}

// In FP32, sums have at most 516 terms; their error is the root of that times 6e-8, and there is room for the
// exponentials. In BF16, q, k, v, dout and probabilities are rounded to 2^-9 each. Scores of 16 products carry that
// as sqrt(2) 2^-9 of their size, which is about 1, and exponentials pass it on.
TEST(TrainCuda, AttentionInBlocks) {
  Host<float> host(2);
  for (auto [arithmetic, bound] : {std::pair{cuda::Arithmetic::fp32, 2e-5}, {cuda::Arithmetic::bf16, 2e-2}}) {
    const auto gpu = open_gpu(arithmetic);
    if (!gpu) GTEST_SKIP() << "no GPU";
    for (const auto& sizes : {AttentionSizes{4, 2, 16, 0, {}, 1}, {3, 3, 8, 0, {}, 1}, {4, 1, 16, 150, {}, 1}}) {
      const auto expected = attention(host, sizes), got = attention(*gpu, sizes);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(relative_distance(got[i], expected[i]), bound) << sizes.h << " heads, result " << i;
      EXPECT_EQ(attention(*gpu, sizes), got);  // the same bits again
    }
  }
}

// Returns values, gradients and a step of AdamW for the latents of integers with zero points, of a grid and of
// floats.
template <class D>
std::vector<std::vector<float>> codes(D& device, ScaleRule rule, int levels, bool zeros, bool table, bool offset) {
  constexpr int64_t out = 37, in = 200, group = 64, groups = 4;
  Rng rng(9);
  const auto filled = [&](int64_t n, double low, double high) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = static_cast<float>(low + (high - low) * rng.uniform());
    auto array = device.allocate(n);
    device.upload(values, array.get());
    return array;
  };
  std::vector<float> ascending(static_cast<size_t>(levels));
  for (int k = 0; k < levels; ++k) ascending[static_cast<size_t>(k)] = static_cast<float>(zeros ? k : 3 * k - levels);
  auto level = device.allocate(levels);
  device.upload(ascending, level.get());
  const auto position = filled(out * in, zeros ? -levels : -1, levels + 1), zero = filled(out * groups, 0, levels - 1),
             t = filled(out * groups, 0.5, 120), r = filled(out, 1e-4, 2e-4), o = filled(out * groups, -2, 2),
             weight = device.allocate(out * in), gradient = filled(out * in, -1, 1);
  std::shared_ptr<float[]> a[9];
  for (auto& array : a) array = device.allocate(out * groups);
  auto dlevel = device.allocate(levels), dr = device.allocate(out);
  const ScaleView<float> scales{rule,
                                out,
                                groups,
                                zeros ? levels : 0,
                                t.get(),
                                rule == ScaleRule::f16 ? nullptr : r.get(),
                                zeros ? zero.get() : nullptr,
                                offset ? o.get() : nullptr};
  device.resolve(scales, {a[0].get(), a[1].get(), a[2].get()});
  const CodeSizes sizes{out, in, group, groups, levels};
  const CodeView<float> view{position.get(), level.get(), a[0].get(), zeros ? a[1].get() : nullptr,
                             offset ? a[2].get() : nullptr};
  device.decode(sizes, view, weight.get());
  device.decode_backward(
      sizes, view,
      {gradient.get(), a[3].get(), zeros ? a[4].get() : nullptr, a[5].get(), table ? dlevel.get() : nullptr});
  device.resolve_backward(scales, {a[3].get(), a[5].get(), a[6].get(), rule == ScaleRule::f16 ? nullptr : dr.get(),
                                   offset ? a[7].get() : nullptr});
  const double norm = device.sum_of_squares(gradient.get(), weight.get(), out * in);
  auto m = device.allocate(out * in), v = device.allocate(out * in);
  device.adam(gradient.get(), nullptr, out * in, {.rate = .1, .step = 3}, position.get(), m.get(), v.get());
  std::vector<std::vector<float>> all = {{static_cast<float>(norm)}};
  const auto keep = [&](const std::shared_ptr<float[]>& array, int64_t n) {
    device.download(array.get(), all.emplace_back(static_cast<size_t>(n)));
  };
  keep(weight, out * in), keep(gradient, out * in), keep(position, out * in), keep(dlevel, levels), keep(dr, out);
  for (const auto& array : a) keep(array, out * groups);
  return all;
}

TEST(TrainCuda, Codes) {
  const auto gpu = open_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  Host<float> host(2);
  const auto same = [&](auto... arguments) {
    const auto expected = codes(host, arguments...), got = codes(*gpu, arguments...);
    // Sums have 64 terms (a group), 4 groups, or thousands of terms (a level); their error is the root of that times
    // 6e-8.
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(relative_distance(got[i], expected[i]), 1e-5) << i;
  };
  same(ScaleRule::u8, 8, true, false, false);
  same(ScaleRule::f16, 16, true, false, false);
  same(ScaleRule::i8, 8, false, true, false);
  same(ScaleRule::e4m3, 15, false, false, true);
}

}  // namespace
}  // namespace fidelio::train
