// This file tests the dense linears of the CPU backend, FP8 weights and coarse activations against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "kernels/cpu/linear/dense.h"
#include "kernels/cpu/test_support.h"
#include "kernels/ref/ref.h"

namespace fidelio::cpu {
namespace {

// Returns y (M, out) of one linear computed by a Cpu.
std::vector<float> run_linear(Cpu& cpu, const LinearWeight& weight, std::span<const float> x, int64_t rows,
                              Activations mode, const std::vector<float>* add = nullptr) {
  cpu.reserve(rows, weight.in, 64);
  cpu.begin(rows_batch(rows), mode, tiny_shape());
  Cpu::Matrix input = cpu.allocate(rows, weight.in), y = cpu.allocate(rows, weight.out);
  cpu.upload(x, input);
  const Cpu::Linear packed = cpu.pack(weight);
  if (add) {
    cpu.upload(*add, y);
    cpu.linear_add(cpu.input(input), packed, y);
  } else {
    const std::pair<const Cpu::Linear*, Cpu::Matrix*> one[] = {{&packed, &y}};
    cpu.linear(cpu.input(input), one);
  }
  std::vector<float> out(static_cast<size_t>(rows * weight.out));
  cpu.download(y, 0, rows, out);
  return out;
}

struct Case {
  Isa isa;
  DType dtype;
  Activations mode;
};
class DenseLinear : public testing::TestWithParam<Case> {};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (Isa isa : supported_isas())
    for (DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (Activations mode : {Activations::f32, Activations::a16, Activations::a8}) all.push_back({isa, dtype, mode});
  return all;
}

// Returns the tolerance of a dense product. A sum of K products in FP32 in any order, each product rounded at most
// once, errs by at most gamma_K sum |x||w| with gamma_K = K u / (1 - K u) (Higham, Accuracy and Stability, 3.1); bias
// and addition are two more roundings. If x is first rounded to BF16, every product moves by a relative 2^-8 (the
// unit roundoff of 8 bits); vdpbf16ps rounds a pair's products and sum like FP32 operations, twice at most, and
// flushes values below 2^-126, which do not occur here.
double tolerance(const LinearKernel& kernel, int64_t K, double magnitude) {
  const double n = static_cast<double>(2 * K + 2), input = kernel.form == Form::bf16 ? 0x1p-8 : 0;
  return (n * kUnit / (1 - n * kUnit) * (1 + input) + input) * magnitude;
}

TEST_P(DenseLinear, AgreesWithTheReferenceAtEverySize) {
  const auto [isa, dtype, mode] = GetParam();
  Cpu cpu({.threads = 2, .isa = isa});
  for (const auto& [out, in, rows] :
       {std::tuple{1, 1, 1}, {16, 32, 1}, {17, 33, 5}, {64, 64, 6}, {83, 129, 7}, {130, 70, 13}, {256, 40, 25}})
    for (const bool bias : {false, true})
      for (const bool add : {false, true}) {
        const LinearWeight weight = random_weight(dtype, out, in, bias, 7);
        const std::vector<float> x = normals(rows * in, 8), before = normals(rows * out, 9);
        const std::vector<float> y = run_linear(cpu, weight, x, rows, mode, add ? &before : nullptr);
        const std::vector<float> w = decode(weight);
        std::vector<double> b;
        if (bias) b = widened(weight.bias.as<float>());
        const std::vector<double> want = ref::linear(widened(x), widened(w), b, rows, in, out);
        const LinearKernel& kernel = *cpu.pack(weight).kernels[static_cast<size_t>(mode)];
        for (int m = 0; m < rows; ++m)
          for (int o = 0; o < out; ++o) {
            double magnitude = (bias ? std::abs(b[static_cast<size_t>(o)]) : 0) +
                               (add ? std::abs(before[static_cast<size_t>(m * out + o)]) : 0);
            for (int k = 0; k < in; ++k)
              magnitude += std::abs(static_cast<double>(x[static_cast<size_t>(m * in + k)]) *
                                    w[static_cast<size_t>(o * in + k)]);
            const size_t i = static_cast<size_t>(m * out + o);
            ASSERT_NEAR(y[i], want[i] + (add ? before[i] : 0), tolerance(kernel, in, magnitude))
                << kernel.name << " " << out << "x" << in << " row " << m << " output " << o;
          }
      }
}

TEST_P(DenseLinear, ARowDoesNotDependOnTheBatchNorOnThreads) {
  const auto [isa, dtype, mode] = GetParam();
  constexpr int64_t kOut = 210, kIn = 101, kRows = 64;
  const LinearWeight weight = random_weight(dtype, kOut, kIn, true, 3);
  const std::vector<float> x = normals(kRows * kIn, 4);
  std::vector<float> single;
  Cpu one({.threads = 1, .isa = isa});
  for (int64_t m = 0; m < kRows; ++m) {
    const std::vector<float> y =
        run_linear(one, weight, std::span(x).subspan(static_cast<size_t>(m * kIn), kIn), 1, mode);
    single.insert(single.end(), y.begin(), y.end());
  }
  const auto prefix = [&](int64_t rows) { return std::vector<float>(single.begin(), single.begin() + rows * kOut); };
  for (int64_t rows = 1; rows <= 17; ++rows)
    ASSERT_EQ(run_linear(one, weight, std::span(x).first(static_cast<size_t>(rows * kIn)), rows, mode), prefix(rows))
        << rows;
  for (int threads = 1; threads <= 5; ++threads) {
    Cpu cpu({.threads = threads, .isa = isa});
    ASSERT_EQ(run_linear(cpu, weight, x, kRows, mode), single) << threads << " threads";
    ASSERT_EQ(run_linear(cpu, weight, std::span(x).first(3 * kIn), 3, mode), prefix(3)) << threads << " threads";
  }
}

TEST_P(DenseLinear, EmbeddingRowsAreTheWeightsOwn) {
  const auto [isa, dtype, mode] = GetParam();
  const LinearWeight weight = random_weight(dtype, 37, 19, false, 5);
  Cpu cpu({.threads = 2, .isa = isa});
  cpu.reserve(4, 19, 64);
  Batch batch = rows_batch(4);
  batch.ids = {36, 0, 17, 16};
  cpu.begin(batch, mode, tiny_shape());
  Cpu::Matrix x = cpu.allocate(4, 19);
  cpu.embed(cpu.pack(weight), x, 1.0f);
  const std::vector<float> w = decode(weight);
  for (int row = 0; row < 4; ++row)
    for (int k = 0; k < 19; ++k)
      EXPECT_EQ(x.row(row)[k], w[static_cast<size_t>(batch.ids[static_cast<size_t>(row)] * 19 + k)]);
}

INSTANTIATE_TEST_SUITE_P(All, DenseLinear, testing::ValuesIn(cases()), [](const auto& info) {
  std::string dtype(name_of(info.param.dtype));
  return std::string(name_of(info.param.isa)) + "_" + dtype + "_" + std::string(name_of(info.param.mode));
});

// The table has both forms of BF16 weights, whichever the machine prefers; both must be right and row-invariant.
TEST(DenseKernels, EveryRowOfTheTableIsRowInvariant) {
  constexpr int64_t kOut = 97, kIn = 57, kRows = 13;
  const std::vector<float> x = normals(kRows * kIn, 1);
  for (Isa isa : supported_isas())
    for (const LinearKernel& kernel : dense_kernels(isa)) {
      if (kernel.kind == Kind::fp8) continue;  // FP8 has a test of its own below
      const DType dtype = kernel.kind == Kind::f32 ? DType::f32 : kernel.kind == Kind::f16 ? DType::f16 : DType::bf16;
      const LinearWeight weight = random_weight(dtype, kOut, kIn, false, 2);
      Linear packed;
      packed.out = kOut, packed.in = kIn, packed.spec = weight.spec, packed.packed = kernel.pack(weight);
      const auto product = [&](const float* rows, int64_t count) {
        const Buffer scratch(prepared_bytes(kernel.form, count, kIn, kIn) + 64);
        const Prepared p = prepare(kernel.form, isa, rows, count, kIn, kIn, 8, scratch.data(), 0, count);
        std::vector<float> y(static_cast<size_t>(count * kOut));
        kernel.multiply(packed, p, 0, (kOut + kernel.block - 1) / kernel.block, y.data(), kOut, false);
        return y;
      };
      const std::vector<float> all = product(x.data(), kRows);
      const std::vector<double> want = ref::linear(widened(x), widened(decode(weight)), {}, kRows, kIn, kOut);
      for (int64_t m = 0; m < kRows; ++m) {
        const std::vector<float> alone = product(x.data() + m * kIn, 1);
        for (int64_t o = 0; o < kOut; ++o) {
          ASSERT_EQ(alone[static_cast<size_t>(o)], all[static_cast<size_t>(m * kOut + o)]) << kernel.name;
          // For two standard normals |x||w| is below 5 * 5, a coarse form of tolerance() above.
          ASSERT_NEAR(alone[static_cast<size_t>(o)], want[static_cast<size_t>(m * kOut + o)],
                      tolerance(kernel, kIn, 25.0 * kIn))
              << kernel.name;
        }
      }
    }
}

TEST(Linear, SeveralWeightsShareOneInput) {
  Cpu cpu({.threads = 3});
  const LinearWeight a = random_weight(DType::bf16, 48, 64, false, 1), b = random_weight(DType::f16, 80, 64, true, 2),
                     c = random_weight(DType::f32, 16, 64, false, 3);
  const std::vector<float> x = normals(5 * 64, 4);
  std::vector<std::vector<float>> alone;
  for (const LinearWeight* w : {&a, &b, &c}) alone.push_back(run_linear(cpu, *w, x, 5, Activations::a16));
  cpu.begin(rows_batch(5), Activations::a16, tiny_shape());
  Cpu::Matrix input = cpu.allocate(5, 64), ya = cpu.allocate(5, 48), yb = cpu.allocate(5, 80), yc = cpu.allocate(5, 16);
  cpu.upload(x, input);
  const Cpu::Linear pa = cpu.pack(a), pb = cpu.pack(b), pc = cpu.pack(c);
  const std::pair<const Cpu::Linear*, Cpu::Matrix*> all[] = {{&pa, &ya}, {&pb, &yb}, {&pc, &yc}};
  cpu.linear(cpu.input(input), all);
  const Cpu::Matrix* results[] = {&ya, &yb, &yc};
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(std::vector<float>(results[i]->data(), results[i]->data() + 5 * results[i]->columns), alone[i]);
}

TEST(Linear, PackedBytesAreTheWeightsOwn) {
  Cpu cpu({.threads = 1});
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const LinearWeight w = random_weight(dtype, 64, 128, false, 1);
    EXPECT_EQ(cpu.pack(w).bytes(), w.stored_bytes());
  }
}

// Groups of 16 integers have no kernel, so the weight's meaning, decode(), is served as dense FP32.
TEST(Linear, AFormatWithoutAKernelIsDecodedToDense) {
  Cpu cpu({.threads = 2});
  LinearWeight w = allocate_weight(parse_format("int4g16"), 24, 32);
  auto& m = std::get<IntGroup>(w.main);
  Rng rng(5);
  for (f16& scale : m.scale.as<f16>()) scale = to_f16(static_cast<float>(0.01 + rng.uniform()));
  for (int64_t o = 0; o < 24; ++o)
    for (int64_t i = 0; i < 32; ++i) m.codes.set(o, i, static_cast<uint8_t>(rng.below(16)));
  const std::vector<float> x = normals(3 * 32, 6), decoded = decode(w);
  OwnedTensor dense = OwnedTensor::allocate(DType::f32, {24, 32});
  convert_from_float(decoded, dense.view);
  EXPECT_EQ(run_linear(cpu, w, x, 3, Activations::a16),
            run_linear(cpu, make_dense(std::move(dense)), x, 3, Activations::a16));
  EXPECT_THAT(cpu.kernel_name(cpu.pack(w), Activations::a16), testing::StartsWith("f32"));
}

// This test covers every E4M3 code, NaN included, in every lane, ragged blocks, with and without a bias. Products and
// sums are in FP32 like those of tolerance() above, followed by one rounding of the row scale; batches, threads and
// modes change nothing.
TEST(Linear, Fp8ConformsOnEveryIsaAndIsRowInvariant) {
  constexpr int64_t kOut = 37, kIn = 256, kRows = 9;
  for (const bool bias : {false, true}) {
    LinearWeight w = allocate_weight(parse_format("fp8"), kOut, kIn);
    auto& fp = std::get<FpBlock>(w.main);
    Rng rng(5);
    for (int64_t o = 0; o < kOut; ++o) {
      fp.row_scale.as<float>()[static_cast<size_t>(o)] = static_cast<float>(0.01 + rng.uniform());
      for (int64_t i = 0; i < kIn; ++i) {
        const auto code = static_cast<uint8_t>(i + 7 * o);
        fp.codes.set(o, i, o < 16 || (code & 0x7f) != 0x7f ? code : 0);  // the first block has NaN in every row
      }
    }
    if (bias) {
      w.bias = OwnedTensor::allocate(DType::f32, {kOut});
      for (float& b : w.bias.as<float>()) b = static_cast<float>(rng.normal());
    }
    const std::vector<float> x = normals(kRows * kIn, 6), decoded = decode(w);
    for (const Isa isa : supported_isas()) {
      Cpu cpu({.threads = 2, .isa = isa});
      const Cpu::Linear packed = cpu.pack(w);
      EXPECT_EQ(cpu.kernel_name(packed, Activations::a16),
                "fp8 x f32 " + std::string(name_of(std::min(isa, Isa::avx512))));
      EXPECT_EQ(packed.bytes() - (bias ? 64 * 4 : 0), 48 * kIn + 48 * 4);
      std::vector<float> row(kIn);
      for (int64_t o = 16; o < kOut; ++o) {
        packed.kernels[1]->decode_row(packed, o, row.data());
        EXPECT_TRUE(std::equal(row.begin(), row.end(), decoded.begin() + o * kIn)) << o;
      }
      const std::vector<float> y = run_linear(cpu, w, x, kRows, Activations::a16);
      EXPECT_EQ(run_linear(cpu, w, x, kRows, Activations::a8).back(), y.back());
      for (int64_t m = 0; m < kRows; ++m) {
        const std::vector<float> one = run_linear(cpu, w, std::span(x).subspan(m * kIn, kIn), 1, Activations::a16);
        for (int64_t o = 0; o < kOut; ++o) {
          const float got = y[static_cast<size_t>(m * kOut + o)];
          if (o < 16) {
            EXPECT_TRUE(std::isnan(got)) << o;
            continue;
          }
          double want = bias ? double{w.bias.as<float>()[o]} : 0, magnitude = std::abs(want);
          for (int64_t k = 0; k < kIn; ++k) {
            const double term = double{x[m * kIn + k]} * decoded[o * kIn + k];  // decoded is itself rounded once
            want += term, magnitude += std::abs(term);
          }
          EXPECT_NEAR(got, want, (2 * kIn + 4) * kUnit * 1.001 * magnitude) << name_of(isa) << " " << m << " " << o;
          EXPECT_EQ(one[static_cast<size_t>(o)], got) << name_of(isa) << " " << m << " " << o;
        }
      }
    }
  }
}

// A6 and A4 round every group of a row to 31 or 7 steps in either direction, AW to as many as the weight's codes
// allow. One input meets three weights of different width, and each product is compared with the reference's. The
// integers must be the reference's own, since no value here lies within FP32's rounding of the middle of two steps;
// so only FP32's arithmetic remains: per group a product, a scale and a sum, and the scale of the activations, which
// is rounded once.
TEST(CoarseActivations, AreTheReferencesRoundedOnesInEveryMode) {
  constexpr int64_t kIn = 344, kRows = 5;
  const std::vector<float> x = normals(kRows * kIn, 21);
  const int widths[] = {3, 4, 6};
  std::vector<LinearWeight> weights;
  for (const int bits : widths) {
    LinearWeight w = allocate_weight({.kind = Kind::integer, .bits = bits, .group = 64}, 40, kIn);
    Rng rng(static_cast<uint64_t>(bits));
    auto& m = std::get<IntGroup>(w.main);
    for (f16& s : m.scale.as<f16>()) s = to_f16(static_cast<float>(0.02 * rng.normal()));
    std::vector<uint8_t> row(kIn);
    for (int64_t o = 0; o < w.out; ++o) {
      for (uint8_t& q : row) q = static_cast<uint8_t>(rng.below(1u << bits));
      m.codes.set_row(o, row);
    }
    weights.push_back(std::move(w));
  }
  for (const Isa isa : supported_isas())
    for (const auto& [mode, fixed] :
         {std::pair{Activations::a8, 8}, {Activations::a6, 6}, {Activations::a4, 4}, {Activations::aw, 0}}) {
      Cpu cpu({.threads = 2, .isa = isa});
      cpu.reserve(kRows, kIn, 64);
      cpu.begin(rows_batch(kRows), mode, tiny_shape());
      Cpu::Matrix input = cpu.allocate(kRows, kIn), y[3];
      cpu.upload(x, input);
      std::vector<Cpu::Linear> packed;
      for (const LinearWeight& w : weights) packed.push_back(cpu.pack(w));
      std::vector<std::pair<const Cpu::Linear*, Cpu::Matrix*>> all;
      for (size_t i = 0; i < 3; ++i) {
        y[i] = cpu.allocate(kRows, 40);
        all.emplace_back(&packed[i], &y[i]);
      }
      cpu.linear(cpu.input(input), all);
      for (size_t i = 0; i < 3; ++i) {
        const std::vector<double> w = widened(decode(weights[i])),
                                  seen = ref::rounded(widened(x), kRows, kIn, 64, fixed > 0 ? fixed : widths[i]),
                                  want = ref::linear(seen, w, {}, kRows, kIn, 40);
        std::vector<float> got(kRows * 40);
        cpu.download(y[i], 0, kRows, got);
        for (int64_t m = 0; m < kRows; ++m)
          for (int64_t o = 0; o < 40; ++o) {
            double magnitude = 0;
            for (int64_t k = 0; k < kIn; ++k) magnitude += std::abs(seen[m * kIn + k] * w[o * kIn + k]);
            ASSERT_NEAR(got[m * 40 + o], want[m * 40 + o], 12 * kUnit * magnitude)
                << name_of(mode) << " " << name_of(isa) << " int" << widths[i];
          }
      }
    }
}

// The columns come in another order, and the last 64 of them come twice: these have 8 bits, the others are clipped
// and have 4, in products that treat all codes alike. The tolerance is as above.
TEST(CoarseActivations, OfGatheredColumnsLeaveTheKeptOnes8Bits) {
  constexpr int64_t kIn = 256, kKept = 64, kAll = kIn + kKept, kOthers = kIn - kKept, kRows = 5, kOut = 40;
  const std::vector<float> x = normals(kRows * kIn, 23);
  std::vector<int32_t> order(kIn);
  for (int32_t i = 0; i < kIn; ++i) order[static_cast<size_t>(i)] = (i * 37 + 11) % kIn;
  order.insert(order.end(), order.end() - kKept, order.end());
  LinearWeight weight = allocate_weight({.kind = Kind::integer, .bits = 4, .group = kKept}, kOut, kAll);
  for (Rng rng(24); const StoredTensor& t : stored_tensors(weight)) {
    if (t.tensor.dtype == DType::u8)
      for (uint8_t& v : t.tensor.as<uint8_t>()) v = static_cast<uint8_t>(rng.below(256));
    else
      for (f16& v : t.tensor.as<f16>()) v = to_f16(static_cast<float>(0.02 * rng.normal()));
  }
  const std::vector<double> w = widened(decode(weight));
  for (const Isa isa : supported_isas())
    for (const auto& [mode, bits] : {std::pair{Activations::f32, 0}, {Activations::a8, 8}, {Activations::a4, 4}}) {
      std::vector<float> others, kept, together;
      for (int64_t m = 0; m < kRows; ++m)
        for (int64_t first = 0; first < kAll; first += kKept) {
          std::vector<float> group(kKept);
          for (int64_t i = 0; i < kKept; ++i) group[i] = x[m * kIn + order[first + i]];
          float largest = 0;
          for (const float value : group) largest = std::max(largest, std::abs(value));
          if (bits == 4 && first < kOthers)
            for (float& value : group) value = std::clamp(value, -kGroupClip * largest, kGroupClip * largest);
          std::vector<float>& part = first < kOthers ? others : kept;
          part.insert(part.end(), group.begin(), group.end());
          together.insert(together.end(), group.begin(), group.end());
        }
      Cpu cpu({.threads = 2, .isa = isa});
      cpu.reserve(kRows, kAll, 64);
      const Cpu::Order how = cpu.make_order(order, kKept);
      cpu.begin(rows_batch(kRows), mode, tiny_shape());
      Cpu::Matrix input = cpu.allocate(kRows, kIn), y = cpu.allocate(kRows, kOut);
      cpu.upload(x, input);
      const Cpu::Acts acts = cpu.gather(cpu.input(input), how);
      std::vector<float> gathered(kRows * kAll), got(kRows * kOut);
      cpu.read(acts, gathered);
      EXPECT_EQ(gathered, together) << name_of(mode);
      if (bits == 0) continue;
      const Cpu::Linear packed = cpu.pack(weight);
      cpu.linear(acts, std::array{std::pair<const Cpu::Linear*, Cpu::Matrix*>{&packed, &y}});
      cpu.download(y, 0, kRows, got);
      const std::vector<double> few = ref::rounded(widened(others), kRows, kOthers, kKept, bits),
                                many = ref::rounded(widened(kept), kRows, 2 * kKept, kKept, 8);
      std::vector<double> seen;
      for (int64_t m = 0; m < kRows; ++m) {
        seen.insert(seen.end(), few.begin() + m * kOthers, few.begin() + (m + 1) * kOthers);
        seen.insert(seen.end(), many.begin() + m * 2 * kKept, many.begin() + (m + 1) * 2 * kKept);
      }
      const std::vector<double> want = ref::linear(seen, w, {}, kRows, kAll, kOut);
      for (int64_t m = 0; m < kRows; ++m)
        for (int64_t o = 0; o < kOut; ++o) {
          double magnitude = 0;
          for (int64_t k = 0; k < kAll; ++k) magnitude += std::abs(seen[m * kAll + k] * w[o * kAll + k]);
          ASSERT_NEAR(got[m * kOut + o], want[m * kOut + o], 12 * kUnit * magnitude) << name_of(mode) << name_of(isa);
        }
    }
}

// The two products of BF16 weights round differently. When a clock chose between them, a busy machine gave other bits
// from one process to the next.
TEST(Isa, TheMakerOfTheCpuChoosesTheProductOfBf16Weights) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  const std::string about{std::istreambuf_iterator<char>(cpuinfo), {}};
  const bool amd = about.find("AuthenticAMD") != std::string::npos;
  for (Isa isa : supported_isas())
    EXPECT_EQ(bf16_dot_is_faster(isa), amd && kernel_set(isa).bf16_bf16 != nullptr) << name_of(isa);
}

TEST(Isa, NamesRoundTripAndUnknownOnesAreRefused) {
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::amx}) EXPECT_EQ(parse_isa(name_of(isa)), isa);
  EXPECT_THAT([] { parse_isa("sse9"); },
              testing::ThrowsMessage<Error>(testing::AllOf(testing::HasSubstr("sse9"), testing::HasSubstr("avx2"))));
  EXPECT_EQ(supported_isas().front(), Isa::portable);
}

}  // namespace
}  // namespace fidelio::cpu
