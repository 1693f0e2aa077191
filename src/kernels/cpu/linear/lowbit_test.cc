// This file compares every low-bit kernel, for each instruction set and for ragged sizes, with the meaning of its
// format (formats/linear_weight.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/rng.h"
#include "core/thread_pool.h"
#include "formats/small_float.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/lowbit.h"

namespace fidelio::cpu {
namespace {

constexpr double kUnit = 0x1p-24;  // FP32's unit roundoff; gamma(n) bounds the relative error of n roundings
double gamma(double n) { return n * kUnit / (1 - n * kUnit); }

std::vector<FormatSpec> all_specs() {
  std::vector<FormatSpec> specs;
  for (int group : {32, 64, 128, 0}) {
    for (int bits = 2; bits <= 8; ++bits)
      for (bool symmetric : {true, false})
        for (ScaleKind scale : {ScaleKind::f16, ScaleKind::u8})
          specs.push_back(
              {.kind = Kind::integer, .bits = bits, .group = group, .symmetric = symmetric, .scale = scale});
    for (int bits = 2; bits <= 6; ++bits) specs.push_back({.kind = Kind::grid, .bits = bits, .group = group});
  }
  return specs;
}

// Returns the formats whose codes are integers times the scale of a group of whole spans.
std::vector<FormatSpec> all_specs_and_mxfp4() {
  std::vector<FormatSpec> specs = all_specs();
  specs.push_back(parse_format("mxfp4"));
  return specs;
}
std::vector<FormatSpec> all_specs_and_fp4() {
  std::vector<FormatSpec> specs = all_specs_and_mxfp4();
  for (const char* fp4 : {"fp4g16", "fp4g16z"}) specs.push_back(parse_format(fp4));
  return specs;
}

template <typename T>
std::span<T> elements(OwnedTensor& t) {
  return t.as<T>();
}

// Returns a weight with random codes, scales, zeros and codebook and, on request, a bias.
LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in, uint64_t seed, bool bias = false) {
  Rng rng(seed);
  LinearWeight w = allocate_weight(spec, out, in);
  const auto fill = [&](Codes& codes) {
    std::vector<uint8_t> row(static_cast<size_t>(in));
    for (int64_t o = 0; o < out; ++o) {
      for (uint8_t& q : row) q = static_cast<uint8_t>(rng.below(1u << spec.bits));
      codes.set_row(o, row);
    }
  };
  if (auto* m = std::get_if<IntGroup>(&w.main)) {
    fill(m->codes);
    if (spec.scale == ScaleKind::u8) {
      for (uint8_t& s : elements<uint8_t>(m->scale)) s = static_cast<uint8_t>(rng.below(256));
      for (float& r : elements<float>(m->row_scale)) r = static_cast<float>(0.001 * (0.5 + rng.uniform()));
    } else {
      for (f16& s : elements<f16>(m->scale)) s = to_f16(static_cast<float>(0.02 * rng.normal()));
    }
    if (!spec.symmetric)
      for (int64_t o = 0; o < out; ++o)
        for (int64_t g = 0; g < spec.groups(in); ++g) set_zero(*m, o, g, static_cast<int>(rng.below(1u << spec.bits)));
  } else if (auto* f = std::get_if<FpBlock>(&w.main)) {
    fill(f->codes);
    // MXFP4 has the smallest powers too, which are subnormal.
    const auto power = [&] { return static_cast<uint8_t>(rng.below(5) == 0 ? rng.below(3) : 115 + rng.below(12)); };
    const bool mxfp4 = spec.kind == Kind::mxfp4;
    for (int64_t i = 0; mxfp4 && i < f->scale.view.elements(); ++i) elements<uint8_t>(f->scale)[i] = power();
    for (int64_t i = 0; !mxfp4 && i < out; ++i)
      elements<float>(f->row_scale)[i] = static_cast<float>(0.001 * (0.5 + rng.uniform()));
    for (OwnedTensor* t : {&f->scale, &f->offset})
      for (int64_t i = 0; !mxfp4 && *t && i < t->view.elements(); ++i)  // all but NaN, subnormals included
        t->view.data[i] = static_cast<std::byte>(rng.below(0x7f) | rng.below(2) << 7);
  } else {
    auto& v = std::get<VectorCode>(w.main);
    fill(v.codes);
    for (int8_t& c : elements<int8_t>(v.codebook)) c = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
    for (int8_t& s : elements<int8_t>(v.scale)) s = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
    for (float& r : elements<float>(v.row_scale)) r = static_cast<float>(0.001 * (0.5 + rng.uniform()));
  }
  if (bias) {
    w.bias = OwnedTensor::allocate(DType::f32, {out});
    for (float& b : elements<float>(w.bias)) b = static_cast<float>(rng.normal());
  }
  return w;
}

std::vector<float> random_rows(int64_t rows, int64_t columns, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(rows * columns));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

const LinearKernel& kernel_of(const FormatSpec& spec, Activations mode, Isa isa) {
  const LinearKernel* found = nullptr;
  for (const LinearKernel& k : lowbit_kernels(isa))
    if (k.kind == spec.kind && k.mode == mode && k.accepts(spec, 1, 1)) found = &k;
  EXPECT_NE(found, nullptr) << to_string(spec);
  return *found;
}

Linear pack(const LinearWeight& w, Isa isa) {
  Linear linear{.out = w.out, .in = w.in, .spec = w.spec, .packed = {}, .bias = {}};
  for (Activations mode : {Activations::f32, Activations::a16, Activations::a8})
    linear.kernels[static_cast<int>(mode)] = &kernel_of(w.spec, mode, isa);
  linear.packed = linear.kernels[1]->pack(w);
  if (w.bias) {
    linear.bias = Buffer(static_cast<size_t>(w.out) * 4);
    std::memcpy(linear.bias.data(), w.bias.view.data, linear.bias.size());
  }
  return linear;
}

struct Input {
  Buffer scratch;
  Prepared prepared;
};

Input prepare_for(const Linear& w, Activations mode, Isa isa, const std::vector<float>& x, int64_t rows) {
  Input input;
  const Form form = w.kernels[static_cast<int>(mode)]->form;
  const int64_t group = activation_group(w.spec);
  input.scratch = Buffer(prepared_bytes(form, rows, w.in, group));
  const int64_t half = rows / 2;  // in two parts, as threads do it
  cpu::prepare(form, isa, x.data(), rows, w.in, group, 8, input.scratch.data(), 0, half);
  input.prepared = cpu::prepare(form, isa, x.data(), rows, w.in, group, 8, input.scratch.data(), half, rows);
  return input;
}

// Returns the integer of row m, column c as prepared.
int integer_of(const Prepared& p, int64_t m, int64_t c) {
  const auto* span = static_cast<const int8_t*>(p.plane0) + (c / lowbit::kSpan * p.rows + m) * p.stride;
  const int64_t i = c % lowbit::kSpan;
  if (p.form == Form::i16) {
    const int64_t place = i % 4 == 1 || i % 4 == 2 ? i ^ 3 : i;
    int16_t word;
    std::memcpy(&word, span + 2 * place, 2);
    return word;
  }
  return p.form == Form::i8x2 ? 128 * span[i] + span[lowbit::kSpan + i] : span[i];
}

std::vector<float> multiply(const Linear& w, Activations mode, const Input& input, std::vector<float> y = {},
                            bool add = false) {
  if (y.empty()) y.assign(static_cast<size_t>(input.prepared.rows * w.out), std::numeric_limits<float>::quiet_NaN());
  const LinearKernel& k = *w.kernels[static_cast<int>(mode)];
  k.multiply(w, input.prepared, 0, (w.out + k.block - 1) / k.block, y.data(), w.out, add);
  return y;
}

// An Exact is a weight according to its format, without FP32 roundings: scales in double, and integers.
struct Exact {
  std::vector<std::vector<int>> q;         // (out, in): code - zero, or the grid's entry
  std::vector<std::vector<double>> scale;  // (out, groups)

  explicit Exact(const LinearWeight& w) {
    for (int64_t o = 0; o < w.out; ++o) {
      std::vector<int> row;
      std::vector<double> scales;
      const auto* integer = std::get_if<IntGroup>(&w.main);
      const auto* grid = std::get_if<VectorCode>(&w.main);
      const auto* mxfp4 = std::get_if<FpBlock>(&w.main);
      const int64_t g = w.spec.group_size(w.in), groups = w.spec.groups(w.in);
      for (int64_t c = 0; c < w.in; ++c) {
        if (mxfp4) {
          row.push_back(static_cast<int>(2 * kE2m1[mxfp4->codes.get(o, c)]));
        } else if (grid) {
          row.push_back(grid->codebook.as<const int8_t>()[grid->codes.get(o, c)]);
        } else {
          const int zero = w.spec.symmetric ? 1 << (w.spec.bits - 1) : get_zero(*integer, o, c / g);
          row.push_back(integer->codes.get(o, c) - zero);
        }
      }
      for (int64_t i = 0; i < groups; ++i) {
        const int64_t at = o * groups + i;
        if (mxfp4) {
          scales.push_back(std::ldexp(1.0, mxfp4->scale.as<const uint8_t>()[at] - 128));
        } else if (grid) {
          scales.push_back(double{grid->row_scale.as<const float>()[o]} * grid->scale.as<const int8_t>()[at]);
        } else if (w.spec.scale == ScaleKind::u8) {
          scales.push_back(double{integer->row_scale.as<const float>()[o]} * integer->scale.as<const uint8_t>()[at]);
        } else {
          scales.push_back(to_float(integer->scale.as<const f16>()[at]));
        }
      }
      q.push_back(std::move(row));
      scale.push_back(std::move(scales));
    }
  }
};

// Compares y with the exact value, once for the activations as prepared and once for those before. A group's term is
// s_w s_x I, where I is exact in INT32; then come 1 rounding to FP32, 1 of s_w s_x, 1 of the product (none with FMA)
// and G of the sums; then those of the row scale (1), the bias (1) and the sum into y (1). For x itself |x - s_x q|
// <= s_x / 2 from rounding to the integer, and the 3 roundings of x / s_x and of s_x add less than 16319 * 3 u.
void expect_conforming(const LinearWeight& w, const Exact& exact, const Prepared& p, const std::vector<float>& x,
                       const std::vector<float>& before, const std::vector<float>& y) {
  const int64_t g = w.spec.group_size(w.in), groups = (w.in + p.group - 1) / p.group;
  for (int64_t m = 0; m < p.rows; ++m)
    for (int64_t o = 0; o < w.out; ++o) {
      double value = 0, magnitude = 0, unprepared = 0, step = 0;
      for (int64_t i = 0; i < groups; ++i) {
        int64_t integer = 0;
        const double weight_scale = exact.scale[o][i * p.group / g], scale = p.scale[i * p.rows + m];
        for (int64_t c = i * p.group; c < std::min(w.in, (i + 1) * p.group); ++c) {
          integer += int64_t{exact.q[o][c]} * integer_of(p, m, c);
          unprepared += weight_scale * exact.q[o][c] * x[m * w.in + c];
          step += std::abs(weight_scale * exact.q[o][c]) * scale * (0.5 + 3 * kUnit * lowbit::kSteps16);
        }
        value += weight_scale * scale * static_cast<double>(integer);
        magnitude += std::abs(weight_scale * scale * static_cast<double>(integer));
      }
      const double bias = w.bias ? double{w.bias.as<const float>()[o]} : 0.0,
                   old = before.empty() ? 0.0 : double{before[m * w.out + o]};
      const double bound = gamma(static_cast<double>(groups) + 6) * (magnitude + std::abs(bias) + std::abs(old));
      const double got = y[m * w.out + o];
      ASSERT_LE(std::abs(got - (value + bias + old)), bound) << "row " << m << " output " << o;
      ASSERT_LE(std::abs(got - (unprepared + bias + old)), bound + step) << "row " << m << " output " << o;
    }
}

struct Size {
  int64_t out, in;
};

TEST(Lowbit, IntegerFormsConformForEveryFormatIsaAndRaggedSize) {
  for (const Isa isa : supported_isas())
    for (const FormatSpec& spec : all_specs_and_mxfp4())
      for (const Size size : {Size{37, 352}, Size{16, 128}, Size{3, 101}}) {
        const bool odd = size.out == 37;
        const LinearWeight weight = random_weight(spec, size.out, size.in, 7 + size.out, odd);
        const Exact exact(weight);
        const Linear w = pack(weight, isa);
        const int64_t rows = odd ? 3 : 1;
        const std::vector<float> x = random_rows(rows, size.in, 11);
        for (Activations mode : {Activations::a16, Activations::a8}) {
          SCOPED_TRACE(to_string(spec) + " " + w.kernels[static_cast<int>(mode)]->name + " in " +
                       std::to_string(size.in));
          const Input input = prepare_for(w, mode, isa, x, rows);
          const std::vector<float> before = odd ? random_rows(rows, size.out, 13) : std::vector<float>{};
          expect_conforming(weight, exact, input.prepared, x, before, multiply(w, mode, input, before, odd));
          if (HasFatalFailure()) return;
        }
      }
}

TEST(Lowbit, Fp32FormConformsToDecode) {
  for (const Isa isa : supported_isas())
    for (const FormatSpec& spec : all_specs_and_fp4()) {
      const LinearWeight weight = random_weight(spec, 21, 352, 5, true);
      const std::vector<float> values = decode(weight);
      const Linear w = pack(weight, isa);
      const std::vector<float> x = random_rows(2, w.in, 3);
      const std::vector<float> y = multiply(w, Activations::f32, prepare_for(w, Activations::f32, isa, x, 2));
      SCOPED_TRACE(to_string(spec) + " " + w.kernels[0]->name);
      for (int64_t m = 0; m < 2; ++m)
        for (int64_t o = 0; o < w.out; ++o) {
          double sum = weight.bias.as<const float>()[o], magnitude = std::abs(sum);
          for (int64_t c = 0; c < w.in; ++c) {
            const double term = double{x[m * w.in + c]} * values[o * w.in + c];
            sum += term, magnitude += std::abs(term);
          }
          // There is at most a product and a sum for each column, and the bias.
          ASSERT_LE(std::abs(y[m * w.out + o] - sum), gamma(static_cast<double>(w.in) + 2) * magnitude) << o;
        }
    }
}

TEST(Lowbit, RowsDoNotDependOnTheBatchOrOnThreads) {
  for (const Isa isa : supported_isas())
    for (int bits = 2; bits <= 8; ++bits)
      for (const int group : {32, 64, 128}) {
        FormatSpec spec{
            .kind = bits == 5 ? Kind::grid : Kind::integer, .bits = bits, .group = group, .symmetric = bits == 5};
        const Linear w = pack(random_weight(spec, 50, 352, 17, true), isa);
        const std::vector<float> x = random_rows(140, w.in, 19);
        for (Activations mode : {Activations::f32, Activations::a16, Activations::a8}) {
          SCOPED_TRACE(to_string(spec) + " " + w.kernels[static_cast<int>(mode)]->name);
          std::vector<std::vector<float>> alone;
          for (int64_t m = 0; m < 140; ++m) {
            const std::vector<float> row(x.begin() + m * w.in, x.begin() + (m + 1) * w.in);
            alone.push_back(multiply(w, mode, prepare_for(w, mode, isa, row, 1)));
          }
          for (int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 33, 100, 129, 134, 140}) {
            if (isa == Isa::portable && rows > 3 && rows < 33) continue;  // there is one code path there
            const std::vector<float> y = multiply(w, mode, prepare_for(w, mode, isa, x, rows));
            for (int64_t m = 0; m < rows; ++m)
              ASSERT_EQ(std::memcmp(y.data() + m * w.out, alone[m].data(), static_cast<size_t>(w.out) * 4), 0)
                  << rows << " rows, row " << m;
          }
        }
      }
}

TEST(Lowbit, BlockRangesGiveTheSameBitsOnAnyNumberOfThreads) {
  for (const Isa isa : supported_isas()) {
    const FormatSpec spec{.kind = Kind::integer, .bits = 6, .group = 64, .symmetric = false, .scale = ScaleKind::u8};
    const Linear w = pack(random_weight(spec, 150, 352, 23), isa);
    const std::vector<float> x = random_rows(5, w.in, 29);
    const LinearKernel& k = *w.kernels[1];
    const Input input = prepare_for(w, Activations::a16, isa, x, 5);
    const std::vector<float> whole = multiply(w, Activations::a16, input);
    for (int threads = 1; threads <= 8; ++threads) {
      ThreadPool pool(threads);
      std::vector<float> y(whole.size());
      pool.run((w.out + k.block - 1) / k.block,
               [&](int64_t block, int) { k.multiply(w, input.prepared, block, block + 1, y.data(), w.out, false); });
      ASSERT_EQ(y, whole) << threads << " threads, " << k.name;
    }
  }
}

TEST(Lowbit, DecodeRowGivesTheFormatsOwnValuesAndPackingKeepsTheBytes) {
  for (const FormatSpec& spec : all_specs_and_fp4())
    for (const Size size : {Size{37, 352}, Size{16, 128}, Size{3, 101}}) {
      SCOPED_TRACE(to_string(spec));
      const LinearWeight weight = random_weight(spec, size.out, size.in, 31);
      const Linear w = pack(weight, Isa::portable);
      const std::vector<float> expected = decode(weight);
      std::vector<float> row(static_cast<size_t>(size.in));
      for (int64_t o = 0; o < size.out; ++o) {
        w.kernels[0]->decode_row(w, o, row.data());
        ASSERT_EQ(std::memcmp(row.data(), expected.data() + o * size.in, row.size() * 4), 0) << "row " << o;
      }
      // Whole blocks and spans hold the stored bytes, plus at most 63 bytes of alignment a block and the 128 of a
      // grid's tables. Zeros lie as 16-row strings, while the file rounds each row's string up to a byte.
      if (size.out == 16 && size.in == 128) {
        const int64_t stored = stored_bytes(spec, 16, 128);
        EXPECT_GE(w.bytes(), stored - 16);
        EXPECT_LE(w.bytes(), stored + 63 + 128);
      }
    }
}

// All codes are at the top against zero 0, or at 0 against the top zero, with activations at both ends of their
// range. These give the largest integers: |q - z| = 255, |x| = 16319 and 128 columns make 532,652,160 < 2^31.
TEST(Lowbit, TheLargestIntegersFit) {
  for (const Isa isa : supported_isas())
    for (int bits = 2; bits <= 8; ++bits)
      for (const int group : {128, 0})
        for (const bool top : {true, false}) {
          const FormatSpec spec{.kind = Kind::integer, .bits = bits, .group = group, .symmetric = false};
          LinearWeight weight = random_weight(spec, 16, 352, 37);
          auto& m = std::get<IntGroup>(weight.main);
          const std::vector<uint8_t> codes(352, static_cast<uint8_t>(top ? (1 << bits) - 1 : 0));
          for (int64_t o = 0; o < 16; ++o) {
            m.codes.set_row(o, codes);
            for (int64_t g = 0; g < spec.groups(352); ++g) set_zero(m, o, g, top ? 0 : (1 << bits) - 1);
          }
          const Exact exact(weight);
          const Linear w = pack(weight, isa);
          for (const float end : {1.0f, -1.0f})
            for (Activations mode : {Activations::a16, Activations::a8}) {
              SCOPED_TRACE(to_string(spec) + " " + w.kernels[static_cast<int>(mode)]->name);
              const std::vector<float> x(2 * 352, end);
              const Input input = prepare_for(w, mode, isa, x, 2);
              ASSERT_EQ(integer_of(input.prepared, 1, 351),
                        static_cast<int>(end) * (mode == Activations::a16 ? 16319 : 127));
              expect_conforming(weight, exact, input.prepared, x, {}, multiply(w, mode, input));
              if (HasFatalFailure()) return;
            }
        }
}

TEST(Lowbit, PreparedRowsRoundToTheNearestStepAndSumExactlyOnEveryIsa) {
  const int64_t rows = 3, columns = 101, group = 32;
  std::vector<float> x = random_rows(rows, columns, 41);
  for (int64_t c = 32; c < 64; ++c) x[c] = 0;
  for (const Form form : {Form::i8x2, Form::i8, Form::i16}) {
    std::vector<std::byte> first;
    for (const Isa isa : supported_isas()) {
      if (form == Form::i16 && isa != Isa::avx2) continue;  // no kernel multiplies it there
      Buffer scratch(prepared_bytes(form, rows, columns, group));
      const Prepared p = cpu::prepare(form, isa, x.data(), rows, columns, group, 8, scratch.data(), 0, rows);
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t g = 0; g < 4; ++g) {
          int sum = 0, half = 0;
          const float scale = p.scale[g * rows + m];
          for (int64_t c = g * group; c < std::min(columns, (g + 1) * group); ++c) {
            sum += integer_of(p, m, c);
            half += c % group < 16 ? integer_of(p, m, c) : 0;
            EXPECT_LE(std::abs(double{scale} * integer_of(p, m, c) - x[m * columns + c]),
                      scale * (0.5 + 3 * kUnit * lowbit::kSteps16));
          }
          EXPECT_EQ(p.sum[g * rows + m], sum);
          EXPECT_EQ(p.half[g * rows + m], half);
          for (int64_t c = columns; c < 128; ++c) EXPECT_EQ(integer_of(p, m, c), 0);
        }
      EXPECT_EQ(p.scale[1 * rows + 0], 0.0f);
      const std::vector<std::byte> bytes(scratch.data(), scratch.data() + scratch.size());
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << name_of(isa);
    }
  }
}

TEST(Lowbit, NotANumberAndInfinityReachEveryOutputOfTheirRowAndNoOther) {
  const FormatSpec spec{.kind = Kind::integer, .bits = 4, .group = 64, .symmetric = false};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Isa isa : supported_isas()) {
      const Linear w = pack(random_weight(spec, 20, 352, 43), isa);
      std::vector<float> x = random_rows(2, w.in, 47);
      x[77] = bad;
      for (Activations mode : {Activations::a16, Activations::a8}) {
        const std::vector<float> y = multiply(w, mode, prepare_for(w, mode, isa, x, 2));
        for (int64_t o = 0; o < w.out; ++o) {
          EXPECT_FALSE(std::isfinite(y[o])) << o;
          EXPECT_TRUE(std::isfinite(y[w.out + o])) << o;
        }
      }
    }
}

// Every half of a span has two terms in an output: scale * integers, and offset * their sum. Both integers are exact
// in FP32 (12 * 16319 * 16 < 2^24). A term takes two products and one sum into the total, each a rounding at most;
// the row scale and the bias follow.
TEST(Lowbit, Fp4ConformsOnEveryIsaAtEveryRaggedSizeAndIsRowInvariant) {
  for (const Isa isa : supported_isas())
    for (const char* format : {"fp4g16", "fp4g16z"})
      for (const Size size : {Size{37, 352}, Size{16, 128}, Size{3, 101}, Size{5, 48}, Size{17, 7}}) {
        const int64_t rows = 70;  // more than a pass takes
        const LinearWeight weight = random_weight(parse_format(format), size.out, size.in, 3, true);
        const auto& fp = std::get<FpBlock>(weight.main);
        const Linear w = pack(weight, isa);
        const std::vector<float> x = random_rows(rows, size.in, 11);
        const auto at = [&](const OwnedTensor& t, int64_t o, int64_t c) {
          return t ? double{e4m3_to_float(static_cast<uint8_t>(t.view.data[o * t.view.shape[1] + c / 16]))} : 0.0;
        };
        for (Activations mode : {Activations::a16, Activations::a8}) {
          SCOPED_TRACE(fmt::format("{} {} {}x{}", format, w.kernels[static_cast<int>(mode)]->name, size.out, size.in));
          const Input input = prepare_for(w, mode, isa, x, rows);
          const Prepared& p = input.prepared;
          const std::vector<float> y = multiply(w, mode, input);
          for (int64_t m = 0; m < rows; ++m) {
            for (int64_t o = 0; o < size.out; ++o) {
              double value = 0, magnitude = 0;
              for (int64_t half = 0; half * 16 < size.in; ++half) {
                double coded = 0, plain = 0;
                for (int64_t c = 16 * half; c < std::min(size.in, 16 * half + 16); ++c) {
                  coded += at(fp.scale, o, c) * kE2m1[fp.codes.get(o, c)] * integer_of(p, m, c);
                  plain += at(fp.offset, o, c) * integer_of(p, m, c);
                }
                const double scale = double{p.scale[half / 2 * rows + m]} * fp.row_scale.as<const float>()[o];
                value += scale * (coded + plain), magnitude += scale * (std::abs(coded) + std::abs(plain));
              }
              const double bias = weight.bias.as<const float>()[o];
              const double terms = 2 * static_cast<double>((size.in + 15) / 16 + 1);
              ASSERT_LE(std::abs(y[m * size.out + o] - (value + bias)), gamma(terms + 6) * (magnitude + std::abs(bias)))
                  << "row " << m << " output " << o;
            }
            if (m % 23 != 0) continue;
            const std::vector<float> row(x.begin() + m * size.in, x.begin() + (m + 1) * size.in);
            const std::vector<float> alone = multiply(w, mode, prepare_for(w, mode, isa, row, 1));
            ASSERT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + m * size.out)) << "row " << m;
          }
        }
      }
}

// Expects that the kernel of a view computes, alone and in a batch, from the whole weight's packing, what the view
// decodes to.
void expect_view(const LinearWeight& weight, const Linear& w, const LinearKernel& kernel, Isa isa) {
  const LinearWeight view = high_planes(weight, kernel.bits);
  const std::vector<float> values = decode(view);
  SCOPED_TRACE(to_string(view.spec) + " " + kernel.name);
  const auto out = static_cast<size_t>(w.out), in = static_cast<size_t>(w.in);
  std::vector<float> row(in);
  kernel.decode_row(w, w.out - 1, row.data());
  ASSERT_TRUE(std::equal(row.begin(), row.end(), values.end() - w.in));
  const int64_t rows = 9, blocks = (w.out + 15) / 16;
  const std::vector<float> x = random_rows(rows, w.in, 3);
  const Input input = prepare_for(w, kernel.mode, isa, x, rows);
  std::vector<float> y(rows * out), one(out);
  kernel.multiply(w, input.prepared, 0, blocks, y.data(), w.out, false);
  const std::vector<float> last(x.end() - w.in, x.end());
  kernel.multiply(w, prepare_for(w, kernel.mode, isa, last, 1).prepared, 0, blocks, one.data(), w.out, false);
  ASSERT_TRUE(std::equal(one.begin(), one.end(), y.end() - w.out)) << "alone and in a batch";
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t o = 0; o < w.out; ++o) {
      // The result is compared with the decoded view times the activations as prepared. It has a product and a sum
      // for each column in FP32, or a group's exact integers with three roundings, and the decoded values have two of
      // their own.
      double sum = weight.bias.as<const float>()[o], magnitude = std::abs(sum);
      for (int64_t c = 0; c < w.in; ++c) {
        const Prepared& p = input.prepared;
        const double input_value = kernel.mode == Activations::f32
                                       ? double{x[m * w.in + c]}
                                       : double{p.scale[c / p.group * rows + m]} * integer_of(p, m, c);
        const double term = input_value * values[o * w.in + c];
        sum += term, magnitude += std::abs(term);
      }
      ASSERT_LE(std::abs(y[m * w.out + o] - sum), gamma(static_cast<double>(w.in) + 8) * magnitude) << m << " " << o;
    }
}

// This test covers every way of cutting every format between its planes.
TEST(Lowbit, ViewsReadTheHighPlanesOfTheWholeWeightsPacking) {
  int seen = 0;
  for (const Isa isa : supported_isas())
    for (const FormatSpec& spec : all_specs())
      for (const LinearKernel& kernel : view_kernels(isa)) {
        if (spec.kind != kernel.kind || !kernel.accepts(spec, 21, 352)) continue;
        const LinearWeight weight = random_weight(spec, 21, 352, 5, true);
        const Linear w = pack(weight, isa);
        ASSERT_EQ(ends_at(w, kernel.bits), is_view_width(spec.bits, kernel.bits));
        if (!ends_at(w, kernel.bits)) continue;
        ++seen;
        expect_view(weight, w, kernel, isa);
      }
  // Integers of 3, 5, 6 and 8 bits can be cut in one place, 7 in two, grids of 3, 5 and 6 in one. There are 4 groups,
  // 2 x 2 variants of integers and 3 modes.
  EXPECT_EQ(seen, static_cast<int>(supported_isas().size()) * (6 * 16 + 3 * 4) * 3);
}

// This test covers every cut inside a plane, which is split for it: the views that then end there work, and the whole
// weight gives the same bits as before.
TEST(Lowbit, PlanesAreSplitWhereAViewIsToEnd) {
  int seen = 0;
  for (const Isa isa : supported_isas())
    for (const FormatSpec& spec : all_specs())
      for (int bits = 2; bits < spec.bits; ++bits) {
        if ((spec.kind != Kind::integer && spec.kind != Kind::grid) || is_view_width(spec.bits, bits)) continue;
        SCOPED_TRACE(to_string(spec) + " split for " + std::to_string(bits));
        const LinearWeight weight = random_weight(spec, 37, 352, 5, true);
        const Linear before = pack(weight, isa);
        Linear w = pack(weight, isa);
        end_at(isa, bits, w);
        ASSERT_TRUE(ends_at(w, bits));
        ++seen;
        for (const LinearKernel& kernel : view_kernels(isa))
          if (spec.kind == kernel.kind && kernel.bits == bits) expect_view(weight, w, kernel, isa);
        std::vector<float> was(352), is(352);
        before.kernels[0]->decode_row(before, 36, was.data());
        w.kernels[0]->decode_row(w, 36, is.data());
        ASSERT_EQ(was, is);
        for (const Activations mode : {Activations::f32, Activations::a16, Activations::a8})
          for (const int64_t rows : {1, 19}) {
            const std::vector<float> x = random_rows(rows, w.in, 3);
            const Input input = prepare_for(w, mode, isa, x, rows);
            std::vector<float> expected = random_rows(rows, w.out, 13), got = expected;
            // There is an odd number of blocks, the last one with rows past the end, and one range does not begin at
            // the first block.
            for (const int64_t first : {0, 1}) {
              before.kernel(mode).multiply(before, input.prepared, first, 3, expected.data(), w.out, true);
              w.kernel(mode).multiply(w, input.prepared, first, 3, got.data(), w.out, true);
            }
            ASSERT_EQ(expected, got) << name_of(mode) << " " << rows;
          }
      }
  // Integers of 4 bits have two such cuts, 5 and 6 two and three, 7 three, 8 five; grids of 4, 5 and 6 have two, two
  // and three.
  EXPECT_EQ(seen, static_cast<int>(supported_isas().size()) * (15 * 16 + 7 * 4));
}

// This test covers whole weights and views, rows that fill tiles or do not, more rows than a pass takes, sums added
// to y, and rows of NaN.
TEST(Lowbit, TilesOfAmxGiveTheBitsOfVectors) {
  if (supported_isas().back() != Isa::amx) GTEST_SKIP() << "this machine has no AMX";
  for (const FormatSpec& spec : all_specs())
    for (const Size size : {Size{50, 352}, Size{16, 128}, Size{35, 101}}) {
      const LinearWeight weight = random_weight(spec, size.out, size.in, 7, true);
      const Linear vectors = pack(weight, Isa::avx512);
      std::vector<std::pair<const LinearKernel*, const LinearKernel*>> pairs;
      for (const auto& rows_of : {lowbit_kernels, view_kernels})
        for (size_t i = 0; i < rows_of(Isa::amx).size(); ++i)
          if (const LinearKernel& vector = rows_of(Isa::avx512)[i], &tile = rows_of(Isa::amx)[i];
              vector.kind == spec.kind && vector.mode != Activations::f32 && vector.accepts(spec, size.out, size.in))
            pairs.emplace_back(&vector, &tile);
      ASSERT_GE(pairs.size(), 2u);
      for (const int64_t rows : {16, 17, 150, 259}) {
        std::vector<float> x = random_rows(rows, size.in, 11);
        x[static_cast<size_t>(5 * size.in)] = std::numeric_limits<float>::quiet_NaN();
        const std::vector<float> before = random_rows(rows, size.out, 13);
        for (const auto& [vector, tile] : pairs) {
          SCOPED_TRACE(
              fmt::format("{} {} {} {}x{}, {} rows", to_string(spec), tile->name, tile->bits, size.out, size.in, rows));
          const Input input = prepare_for(vectors, vector->mode, Isa::avx512, x, rows);
          std::vector<float> expected = before, got = before;
          vector->multiply(vectors, input.prepared, 0, (size.out + 15) / 16, expected.data(), size.out, true);
          tile->multiply(vectors, input.prepared, 0, (size.out + 15) / 16, got.data(), size.out, true);
          ASSERT_EQ(std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)), 0);
        }
      }
    }
}

// The largest integers of a view come from 8 bits cut to 4, against zero 0 and with activations at the end of their
// range.
TEST(Lowbit, TheLargestIntegersOfAViewFit) {
  for (const Isa isa : supported_isas())
    for (const bool top : {true, false}) {
      const FormatSpec spec{.kind = Kind::integer, .bits = 8, .group = 128, .symmetric = false};
      LinearWeight weight = random_weight(spec, 16, 128, 37);
      auto& m = std::get<IntGroup>(weight.main);
      const std::vector<uint8_t> codes(128, static_cast<uint8_t>(top ? 255 : 0));
      for (int64_t o = 0; o < 16; ++o) m.codes.set_row(o, codes), set_zero(m, o, 0, top ? 0 : 255);
      const Linear w = pack(weight, isa);
      for (const LinearKernel& kernel : view_kernels(isa)) {
        if (kernel.mode != Activations::a16 || kernel.bits != 4) continue;
        const std::vector<float> x(128, 1.0f);
        std::vector<float> y(16);
        kernel.multiply(w, prepare_for(w, kernel.mode, isa, x, 1).prepared, 0, 1, y.data(), 16, false);
        const std::vector<float> values = decode(high_planes(weight, 4));
        for (int64_t o = 0; o < 16; ++o)  // 128 equal terms, with some six roundings
          EXPECT_NEAR(y[o] / (128.0 * values[o * 128]), 1, 8 * kUnit) << kernel.name;
      }
    }
}

TEST(Lowbit, GroupsOfSixteenAreLeftToOtherKernels) {
  for (const LinearKernel& k : lowbit_kernels(Isa::portable))
    EXPECT_FALSE(k.accepts({.kind = Kind::integer, .bits = 4, .group = 16, .symmetric = true}, 16, 64));
}

}  // namespace
}  // namespace fidelio::cpu
