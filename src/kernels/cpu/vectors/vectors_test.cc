#include "kernels/cpu/vectors/vectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/test_support.h"

namespace fidelio::cpu {
namespace {

// Random codes, scales, codebooks and corrections; corrections of a row are of its last vectors.
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

std::vector<float> run(Cpu& cpu, const Cpu::Linear& w, std::span<const float> x, int64_t rows) {
  cpu.reserve(rows, w.in, 64);
  cpu.begin(rows_batch(rows), Activations::a16, tiny_shape());
  Cpu::Matrix input = cpu.allocate(rows, w.in), output = cpu.allocate(rows, w.out);
  cpu.upload(x, input);
  std::vector<float> y(static_cast<size_t>(rows * w.out));
  const std::pair<const Cpu::Linear*, Cpu::Matrix*> one[] = {{&w, &output}};
  cpu.linear(cpu.input(input), one);
  cpu.download(output, 0, rows, y);
  return y;
}

// Every sign count with and without high bits, ragged rows, columns and tiles; several blocks. A product has a rounding
// for the scaled input and one for its sum, sums at most one for each vector and eight for lanes; corrections the same;
// row scale, correction and bias three more. The reference's weights have a rounding themselves (two with a correction).
TEST(Vectors, ConformOnEveryIsaAndAreRowInvariant) {
  struct Size {
    int64_t out, in;
  };
  for (const char* format : {"vq8k9s1", "vq8k12s1+r2.2", "vq8k12s4+r9.0", "vq8k16s4", "vq8k16s8", "vq8k20s8+r4.7"})
    for (const auto [out, in] : {Size{37, 72}, Size{16, 61}, Size{5, 7}, Size{48, 32768}}) {
      const bool bias = out == 37;
      const LinearWeight w = random_vectors(format, out, in, bias);
      constexpr int64_t kRows = 7;
      const std::vector<float> x = normals(kRows * in, 13), decoded = decode(w);
      for (const Isa isa : supported_isas()) {
        Cpu cpu({.threads = 2, .isa = isa});
        const Cpu::Linear packed = cpu.pack(w);
        EXPECT_EQ(packed.kernels[1]->name, "vq x f32 " + std::string(name_of(std::min(isa, Isa::avx2))));
        std::vector<float> row(static_cast<size_t>(in));
        for (int64_t o = 0; o < out; ++o) {
          packed.kernels[1]->decode_row(packed, o, row.data());
          ASSERT_TRUE(std::equal(row.begin(), row.end(), decoded.begin() + o * in)) << format << " " << o;
        }
        const std::vector<float> y = run(cpu, packed, x, kRows);
        for (int64_t m = 0; m < kRows; ++m) {
          const std::vector<float> one = run(cpu, packed, std::span(x).subspan(m * in, in), 1);
          for (int64_t o = 0; o < out; ++o) {
            double want = bias ? double{w.bias.as<float>()[o]} : 0, magnitude = std::abs(want);
            for (int64_t k = 0; k < in; ++k) {
              const double term = double{x[m * in + k]} * decoded[o * in + k];
              want += term, magnitude += std::abs(term);
            }
            // Where a correction cancels its code, both are larger than their sum: at most by the codes' and corrections'
            // largest weights.
            const double largest = 1.02 * 1.02 * 128 + 1.02 * 128;
            for (int64_t k = 0; k < in; ++k) magnitude += w.spec.sparse > 0 ? std::abs(x[m * in + k]) * largest : 0;
            const double roundings = static_cast<double>(in / 8 + 16);
            const float got = y[m * out + o];
            EXPECT_NEAR(got, want, roundings * kUnit * 1.001 * magnitude) << format << " " << m << " " << o;
            EXPECT_EQ(one[o], got) << format << " " << name_of(isa) << " " << m << " " << o;
          }
        }
      }
    }
}

}  // namespace
}  // namespace fidelio::cpu
