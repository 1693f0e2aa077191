// These tests compare the operations between the linears with kernels/ref, on every instruction set of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/linear/dense.h"
#include "kernels/cpu/test_support.h"
#include "kernels/ref/ref.h"

namespace fidelio::cpu {
namespace {

class Ops : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(All, Ops, testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Ops, NormAgreesWithTheReference) {
  for (int64_t d : {1, 3, 16, 63, 64, 200, 2048, 2051}) {
    const int64_t rows = 7;
    Cpu cpu({.threads = 2, .isa = GetParam()});
    cpu.reserve(rows, d, 64);
    Batch batch = rows_batch(rows);
    batch.logit_rows = {1, 4, 6};
    cpu.begin(batch, Activations::a16, tiny_shape());
    Cpu::Matrix x = cpu.allocate(rows, d), w = cpu.allocate(1, d);
    const std::vector<float> values = normals(rows * d, 1), weight = normals(d, 2);
    cpu.upload(values, x);
    cpu.upload(weight, w);
    std::vector<float> y(static_cast<size_t>(rows * d));
    cpu.read(cpu.norm(x, w, 1e-5f), y);
    const std::vector<double> want =
        ref::rmsnorm(widened(values), widened(weight), static_cast<double>(1e-5f), rows, d);
    // All terms of the sum are positive, so there are at most d / 16 + 16 roundings of a term, which the root halves.
    // Three more roundings follow.
    const double relative = (static_cast<double>(d) / 32 + 12) * kUnit;
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], want[i], relative * std::abs(want[i])) << d;
    std::vector<float> picked(static_cast<size_t>(2 * d));
    cpu.read(cpu.norm_logit_rows(x, w, 1e-5f, 1, 2), picked);
    EXPECT_EQ(picked, [&] {
      std::vector<float> rows46(y.begin() + 4 * d, y.begin() + 5 * d);
      rows46.insert(rows46.end(), y.begin() + 6 * d, y.begin() + 7 * d);
      return rows46;
    }());
  }
}

TEST_P(Ops, SwigluAgreesWithTheReferenceOverTheWholeRange) {
  constexpr int64_t kRows = 3, kColumns = 1003;
  std::vector<float> gate, up = normals(kRows * kColumns, 4);
  Rng rng(3);
  for (int64_t i = 0; i < kRows * kColumns; ++i)
    gate.push_back(static_cast<float>((rng.uniform() - 0.5) * (i % 3 == 0 ? 4 : i % 3 == 1 ? 40 : 300)));
  gate[0] = 0, gate[1] = -1e30f, gate[2] = 1e30f, gate[3] = -87.5f;
  Cpu cpu({.threads = 2, .isa = GetParam()});
  cpu.reserve(kRows, kColumns, 64);
  cpu.begin(rows_batch(kRows), Activations::a16, tiny_shape());
  Cpu::Matrix g = cpu.allocate(kRows, kColumns), u = cpu.allocate(kRows, kColumns);
  cpu.upload(gate, g);
  cpu.upload(up, u);
  std::vector<float> y(gate.size());
  cpu.read(cpu.gated(g, u, Gate::silu, kRows), y);
  const std::vector<double> want = ref::swiglu(widened(gate), widened(up));
  // Let u be kUnit. exp is correct to 2 ulp = 4 u, and the sum, the quotient and the product are rounded once each,
  // so the error is at most 8 u. Below e^-88 the exact value is under 300 * 6 * e^-88, and ours has the same bound
  // with the clamped exponent.
  for (size_t i = 0; i < y.size(); ++i)
    ASSERT_NEAR(
        y[i], want[i],
        8 * kUnit * std::abs(want[i]) + std::abs(static_cast<double>(gate[i]) * up[i]) * (gate[i] < -85 ? 1e-36 : 0))
        << gate[i];
}

TEST_P(Ops, GegluAgreesWithTheReferenceOverTheWholeRange) {
  constexpr int64_t kRows = 3, kColumns = 1003;
  std::vector<float> gate, up = normals(kRows * kColumns, 4);
  Rng rng(3);
  for (int64_t i = 0; i < kRows * kColumns; ++i)
    gate.push_back(static_cast<float>((rng.uniform() - 0.5) * (i % 3 == 0 ? 1 : i % 3 == 1 ? 8 : 300)));
  gate[0] = 0, gate[1] = -1e10f, gate[2] = 1e10f, gate[3] = -5.5f;
  Cpu cpu({.threads = 2, .isa = GetParam()});
  cpu.reserve(kRows, kColumns, 64);
  cpu.begin(rows_batch(kRows), Activations::a16, tiny_shape());
  Cpu::Matrix g = cpu.allocate(kRows, kColumns), u = cpu.allocate(kRows, kColumns);
  cpu.upload(gate, g);
  cpu.upload(up, u);
  std::vector<float> y(gate.size());
  cpu.read(cpu.gated(g, u, Gate::gelu_tanh, kRows), y);
  const std::vector<double> want = ref::geglu(widened(gate), widened(up));
  // The bound is 8 u as for SwiGLU. Besides, the exponent 2 t is off by six roundings, which change e^-2t by 12 u |t|.
  // |t| is below 6 for values that are not 0 in FP32 beside the others; below that the value is under 1e-14 |x|.
  for (size_t i = 0; i < y.size(); ++i) {
    const double size = std::abs(static_cast<double>(gate[i]) * up[i]);
    ASSERT_NEAR(y[i], want[i], (8 + 6 * 12) * kUnit * std::abs(want[i]) + 1e-14 * size) << gate[i];
  }
}

// Beyond the limits the values are those at the limits. The bound is 8 u as for SwiGLU; alpha times the gate is rounded
// once more, which changes the exponential by |alpha x| u, and so is up + 1, which has the size of up and 1 at most.
TEST_P(Ops, ClampedGatesAgreeWithTheReferenceOverTheWholeRange) {
  constexpr int64_t kRows = 3, kColumns = 1003;
  std::vector<float> gate, up;
  Rng rng(3);
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    gate.push_back(static_cast<float>((rng.uniform() - 0.5) * (i % 3 == 0 ? 4 : i % 3 == 1 ? 40 : 300)));
    up.push_back(static_cast<float>((rng.uniform() - 0.5) * (i % 2 == 0 ? 4 : 30)));
  }
  gate[0] = 0, gate[1] = -1e30f, gate[2] = 1e30f, gate[3] = 7, up[3] = -7, up[4] = 1e30f, up[5] = -1e30f, up[6] = -1;
  Cpu cpu({.threads = 2, .isa = GetParam()});
  cpu.reserve(kRows, kColumns, 64);
  cpu.begin(rows_batch(kRows), Activations::a16, tiny_shape());
  Cpu::Matrix g = cpu.allocate(kRows, kColumns), u = cpu.allocate(kRows, kColumns);
  cpu.upload(gate, g);
  cpu.upload(up, u);
  std::vector<float> y(gate.size());
  const Gating how(Gate::clamped, 1.702f, 7);
  cpu.read(cpu.gated(g, u, how, kRows), y);
  const std::vector<double> want = ref::gated(how, widened(gate), widened(up));
  for (size_t i = 0; i < y.size(); ++i) {
    const double x = std::min<double>(gate[i], 7), held = std::clamp<double>(up[i], -7, 7),
                 size = std::abs(x / (1 + std::exp(-1.702 * x))) * (std::abs(held) + 1);
    ASSERT_NEAR(y[i], want[i],
                (9 + std::abs(1.702 * x)) * kUnit * size + std::abs(x) * 8 * (1.702 * x < -85 ? 1e-36 : 0))
        << gate[i] << " " << up[i];
  }
}

// x = norm(x) and x += norm(y) must use the very values of norm(). An embedding's factor must multiply its row.
TEST_P(Ops, NormsInPlaceAndBeforeAddingAreThoseOfNorm) {
  const int64_t rows = 5, d = 203;
  Cpu cpu({.threads = 2, .isa = GetParam()});
  cpu.reserve(rows, d, 64);
  cpu.begin(rows_batch(rows), Activations::a16, tiny_shape());
  Cpu::Matrix x = cpu.allocate(rows, d), y = cpu.allocate(rows, d), w = cpu.allocate(1, d);
  const std::vector<float> before = normals(rows * d, 1);
  cpu.upload(before, x);
  cpu.upload(normals(rows * d, 2), y);
  cpu.upload(normals(d, 3), w);
  std::vector<float> normed(before.size()), got(before.size());
  cpu.read(cpu.norm(y, w, 1e-5f), normed);
  cpu.add_normed(y, w, 1e-5f, x);
  cpu.download(x, 0, rows, got);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], before[i] + normed[i]);
  cpu.normalise(y, w, 1e-5f);
  cpu.download(y, 0, rows, got);
  EXPECT_EQ(got, normed);

  const Cpu::Linear table = cpu.pack(random_weight(DType::f32, 9, d, false, 5));
  std::vector<float> once(before.size());
  cpu.embed(table, x, 1);
  cpu.download(x, 0, rows, once);
  cpu.embed(table, x, 12.5f);
  cpu.download(x, 0, rows, got);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], once[i] * 12.5f);
}

TEST_P(Ops, TurnAgreesWithTheReferenceAndRowsDoNotDependOnTheBatch) {
  // These cover heads that are mixed with and without a dense factor, whole widths, blocks, and very short
  // transforms.
  for (const Hadamard& how : {hadamard_for(8, 64), hadamard_for(12, 5), hadamard_for(1280), hadamard_for(2048),
                              hadamard_for(576), hadamard_for(156), hadamard_for(20), hadamard_for(14)}) {
    const int64_t rows = 5, K = how.columns;
    Cpu cpu({.threads = 2, .isa = GetParam()});
    cpu.reserve(rows, K, 64);
    Cpu::Matrix signs = cpu.allocate(how.core, how.core);
    if (how.core > 1) cpu.upload(std::vector<float>(how.signs.begin(), how.signs.end()), signs);
    const std::vector<float> values = normals(rows * K, 1);
    const auto turned = [&](int64_t first, int64_t count) {
      cpu.begin(rows_batch(count), Activations::a16, tiny_shape());
      Cpu::Matrix x = cpu.allocate(count, K);
      cpu.upload(std::span(values).subspan(static_cast<size_t>(first * K), static_cast<size_t>(count * K)), x);
      std::vector<float> y(static_cast<size_t>(count * K));
      cpu.read(cpu.turn(cpu.input(x), how, signs), y);
      return y;
    };
    const std::vector<float> got = turned(0, rows);
    const std::vector<double> x = widened(values), want = ref::turned(x, how, rows);
    // There are m sums and differences, K sums of the dense factor, and the roundings of the scale and of the product
    // by it. Each is at most u times the magnitudes summed.
    const double roundings = std::log2(static_cast<double>(how.doubled)) + static_cast<double>(how.core) + 2;
    for (int64_t i = 0; i < rows * K; ++i) {
      const int64_t block = i / how.block() * how.block();
      double sum = 0;
      for (int64_t j = i % how.stride; j < how.block(); j += how.stride)
        sum += std::abs(x[static_cast<size_t>(block + j)]);
      ASSERT_NEAR(got[static_cast<size_t>(i)], want[static_cast<size_t>(i)], roundings * kUnit * sum * how.scale())
          << K;
    }
    for (int64_t row = 0; row < rows; ++row)
      EXPECT_EQ(turned(row, 1), std::vector<float>(got.begin() + row * K, got.begin() + (row + 1) * K)) << K;
  }
}

TEST_P(Ops, ToBf16RoundsToNearestEven) {
  std::vector<float> x = normals(1000, 5);
  for (size_t i = 0; i < 300; ++i) {  // these are ties and their neighbours
    const uint32_t tie =
        (static_cast<uint32_t>(i * 7919) << 16 & 0x3fff0000u) + 0x3f008000u + static_cast<uint32_t>(i % 3) - 1;
    x[i] = std::bit_cast<float>(tie & 0x7f7fffffu);
  }
  std::vector<uint16_t> y(x.size());
  kernel_set(GetParam()).to_bf16(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], to_bf16(x[i]).bits) << x[i];
}

TEST(Memory, CopyUploadDownloadInputRead) {
  Cpu cpu({.threads = 1});
  cpu.reserve(3, 5, 64);
  cpu.begin(rows_batch(3), Activations::f32, tiny_shape());
  Cpu::Matrix a = cpu.allocate(3, 5), b = cpu.allocate(3, 5);
  const std::vector<float> x = normals(15, 1);
  cpu.upload(x, a);
  cpu.copy(a, b, 2);
  std::vector<float> y(10), z(15);
  cpu.download(b, 1, 2, y);
  EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 5), std::vector<float>(x.begin() + 5, x.begin() + 10));
  EXPECT_EQ(std::vector<float>(y.begin() + 5, y.end()), std::vector<float>(5, 0.0f));
  cpu.read(cpu.input(a), z);
  EXPECT_EQ(z, x);
}

TEST(Options, AnInstructionSetTheMachineLacksIsRefused) {
  if (supported_isas().back() == Isa::amx) GTEST_SKIP() << "this machine has them all";
  EXPECT_THAT([] { Cpu({.threads = 1, .isa = Isa::amx}); }, testing::ThrowsMessage<Error>(testing::HasSubstr("amx")));
}

}  // namespace
}  // namespace fidelio::cpu
