#include "kernels/cpu/vectors/vectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/test_support.h"

namespace fidelio::cpu {
namespace {

// Returns random codes, scales, codebooks and corrections; the corrections of a row are of its last vectors.
LinearWeight random_vectors(const char* format, int64_t out, int64_t in, bool bias) {
  LinearWeight w = allocate_weight(parse_format(format), out, in);
  auto& m = std::get<SignedVectors>(w.main);
  const VectorShape& s = m.shape;
  Rng rng(11);
  const auto scale = [&] { return to_f16(static_cast<float>(0.01 + rng.uniform())); };
  for (int8_t& b : m.codebook.as<int8_t>()) b = static_cast<int8_t>(static_cast<int>(rng.below(255)) - 127);
  for (f16& x : m.row_scale.as<f16>()) x = scale();
  for (f16& x : m.column_scale.as<f16>()) x = scale();
  for (int64_t r = 0; r < out; ++r)
    for (int64_t v = 0; v < s.vectors; ++v)
      set_vector(m, r, v,
                 {static_cast<int>(rng.below(static_cast<uint64_t>(s.entries))),
                  static_cast<uint8_t>(rng.below(uint64_t{1} << s.signs))});
  if (s.sparse > 0) {
    for (int8_t& b : m.sparse_value.as<int8_t>()) b = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
    for (f16& x : m.sparse_scale.as<f16>()) x = scale();
    for (int64_t i = 0; i < s.sparse; ++i) {
      uint16_t& count = m.sparse_count.as<uint16_t>()[i * out / s.sparse];
      ++count;
    }
    for (int64_t r = 0, i = 0; r < out; ++r)
      for (int64_t n = m.sparse_count.as<uint16_t>()[r]; n > 0; --n, ++i)
        m.sparse_index.as<uint16_t>()[i] = static_cast<uint16_t>(s.vectors - n);
  }
  if (bias) {
    w.bias = OwnedTensor::allocate(DType::f32, {out});
    convert_from_float(normals(out, 12), w.bias.view);
  }
  check_codes(w);
  return w;
}

std::vector<float> run(Cpu& cpu, const Cpu::Linear& w, std::span<const float> x, int64_t rows, Activations mode) {
  cpu.reserve(rows, w.in, 64);
  cpu.begin(rows_batch(rows), mode, tiny_shape());
  Cpu::Matrix input = cpu.allocate(rows, w.in), output = cpu.allocate(rows, w.out);
  cpu.upload(x, input);
  std::vector<float> y(static_cast<size_t>(rows * w.out));
  const std::pair<const Cpu::Linear*, Cpu::Matrix*> one[] = {{&w, &output}};
  cpu.linear(cpu.input(input), one);
  cpu.download(output, 0, rows, y);
  return y;
}

// Returns how much rounding the scaled inputs to 16 bits can change output o: half a step of every group of 1024
// columns, times the magnitudes of the row's centroids there.
double rounding_error(const LinearWeight& w, std::span<const float> x, int64_t o) {
  const auto& m = std::get<SignedVectors>(w.main);
  const auto columns = m.column_scale.as<const f16>();
  const auto book = m.codebook.as<const int8_t>();
  double error = 0;
  for (int64_t first = 0; first < w.in; first += 1024) {
    double range = 0, levels = 0;
    for (int64_t k = first; k < std::min(w.in, first + 1024); ++k) {
      range = std::max(range, std::abs(double{x[k]} * to_float(columns[k])));
      levels += std::abs(book[(m.shape.block_of(o) * m.shape.entries + get_vector(m, o, k / 8).index) * 8 + k % 8]);
    }
    error += levels * to_float(m.row_scale.as<const f16>()[o]) * range / 32767 / 2;
  }
  return error;
}

// This test covers every sign count with and without high bits, ragged rows, columns and tiles, and several blocks.
// In FP32 a product has a rounding for the scaled input and one for its sum, sums have at most one for each vector
// and eight for lanes, and corrections the same; row scale, correction and bias are three more. The reference's
// weights have a rounding themselves (two with a correction). With 16 bits there are fewer of those, and inputs are
// rounded to integers.
TEST(Vectors, ConformOnEveryIsaAndAreRowInvariant) {
  struct Size {
    int64_t out, in;
  };
  for (const char* format : {"vq8k9s1", "vq8k12s1+r2.2", "vq8k12s4+r9.0", "vq8k16s4", "vq8k16s8", "vq8k20s8+r4.7"})
    for (const auto [out, in] : {Size{37, 72}, Size{16, 61}, Size{5, 7}, Size{21, 1300}, Size{48, 32768}}) {
      const bool bias = out == 37;
      const LinearWeight w = random_vectors(format, out, in, bias);
      constexpr int64_t kRows = 7;
      const std::vector<float> x = normals(kRows * in, 13), decoded = decode(w);
      for (const Isa isa : supported_isas()) {
        Cpu cpu({.threads = 2, .isa = isa});
        const Cpu::Linear packed = cpu.pack(w);
        EXPECT_EQ(packed.kernels[0]->name, "vq x f32 " + std::string(name_of(std::min(isa, Isa::avx2))));
        EXPECT_EQ(packed.kernels[1]->name, "vq a16 " + std::string(name_of(std::min(isa, Isa::avx512))));
        std::vector<float> row(static_cast<size_t>(in));
        for (int64_t o = 0; o < out; ++o) {
          packed.kernels[1]->decode_row(packed, o, row.data());
          ASSERT_TRUE(std::equal(row.begin(), row.end(), decoded.begin() + o * in)) << format << " " << o;
        }
        for (const Activations mode : {Activations::f32, Activations::a16}) {
          const std::vector<float> y = run(cpu, packed, x, kRows, mode);
          for (int64_t m = 0; m < kRows; ++m) {
            const std::span<const float> input = std::span(x).subspan(m * in, in);
            const std::vector<float> one = run(cpu, packed, input, 1, mode);
            for (int64_t o = 0; o < out; ++o) {
              double want = bias ? double{w.bias.as<float>()[o]} : 0, magnitude = std::abs(want);
              for (int64_t k = 0; k < in; ++k) {
                const double term = double{input[k]} * decoded[o * in + k];
                want += term, magnitude += std::abs(term);
              }
              // If a correction cancels its code, both are larger than their sum, at most by the codes' and
              // corrections' largest weights.
              const double largest = 1.02 * 1.02 * 127 + 1.02 * 128;
              for (int64_t k = 0; k < in; ++k) magnitude += w.spec.sparse > 0 ? std::abs(input[k]) * largest : 0;
              const double roundings = static_cast<double>(in / 8 + 16);
              const double rounded = mode == Activations::f32 ? 0 : rounding_error(w, input, o);
              const float got = y[m * out + o];
              EXPECT_NEAR(got, want, rounded + roundings * kUnit * 1.001 * magnitude) << format << " " << m << " " << o;
              EXPECT_EQ(one[o], got) << format << " " << name_of(isa) << " " << m << " " << o;
            }
          }
        }
      }
    }
}

// The sums are of integers, so wider registers change no bit. Rows end within a run, a pair and a group of vectors.
TEST(Vectors, WordsHaveTheSameBitsOnEveryVectorIsa) {
  const auto isas = supported_isas();
  if (std::find(isas.begin(), isas.end(), Isa::avx512) == isas.end()) GTEST_SKIP() << "needs AVX-512";
  for (const char* format : {"vq8k9s1", "vq8k12s1", "vq8k12s4", "vq8k16s4", "vq8k16s8", "vq8k20s8"})
    for (const int64_t in : {8, 61, 264, 1024, 1300, 4096}) {
      const LinearWeight w = random_vectors(format, 37, in, false);
      const std::vector<float> x = normals(7 * in, 29);
      const auto bits = [&](Isa isa) {
        Cpu cpu({.threads = 1, .isa = isa});
        return run(cpu, cpu.pack(w), x, 7, Activations::a16);
      };
      EXPECT_EQ(bits(Isa::avx512), bits(Isa::avx2)) << format << " " << in;
    }
}

// A row of x that is not finite is not finite in any output that it reaches, and leaves the others alone.
TEST(Vectors, WhatIsNotFiniteStaysSo) {
  const LinearWeight w = random_vectors("vq8k16s8", 20, 96, false);
  std::vector<float> x = normals(2 * 96, 17);
  for (const Isa isa : supported_isas()) {
    Cpu cpu({.threads = 1, .isa = isa});
    const Cpu::Linear packed = cpu.pack(w);
    const std::vector<float> good = run(cpu, packed, x, 2, Activations::a16);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> with = x;
      with[5] = bad;
      const std::vector<float> y = run(cpu, packed, with, 2, Activations::a16);
      for (int64_t o = 0; o < 20; ++o) {
        EXPECT_FALSE(std::isfinite(y[o]));
        EXPECT_EQ(y[20 + o], good[20 + o]);
      }
    }
  }
}

}  // namespace
}  // namespace fidelio::cpu
