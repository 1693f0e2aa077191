// This file compares every kernel of ggml's super-blocks, for each instruction set and for ragged sizes, with the
// meaning of their formats (formats/linear_weight.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/rng.h"
#include "core/thread_pool.h"
#include "kernels/cpu/linear/lowbit.h"
#include "kernels/cpu/super/super.h"

namespace fidelio::cpu {
namespace {

constexpr double kUnit = 0x1p-24;  // FP32's unit roundoff; gamma(n) bounds the relative error of n roundings
double gamma(double n) { return n * kUnit / (1 - n * kUnit); }

constexpr const char* kFormats[] = {"int2g16zk", "int3g16k",     "int4g32zk",   "int5g32zk",  "int6g16k",
                                    "lut4g32k",  "int4g32zk128", "int6g16k128", "lut4g32k32", "int5g32zk32"};
struct Size {
  int64_t out, in;
};
constexpr Size kSizes[] = {{37, 352}, {16, 512}, {3, 101}, {18, 48}};
constexpr Activations kIntegers[] = {Activations::a16, Activations::a8};

void fill(OwnedTensor& halves, Rng& rng) {
  for (f16& x : halves.as<f16>()) x = to_f16(static_cast<float>(0.001 * rng.normal()));
}

LinearWeight random_weight(const FormatSpec& spec, Size size, uint64_t seed, bool bias = false) {
  Rng rng(seed);
  LinearWeight w = allocate_weight(spec, size.out, size.in);
  auto& m = std::get<SuperBlock>(w.main);
  std::vector<uint8_t> row(static_cast<size_t>(size.in));
  for (int64_t o = 0; o < size.out; ++o) {
    for (uint8_t& q : row) q = static_cast<uint8_t>(rng.below(1u << spec.bits));
    m.codes.set_row(o, row);
  }
  for (OwnedTensor* t : {&m.scale, &m.minimum})
    for (int64_t i = 0; *t && i < t->view.bytes(); ++i) t->view.data[i] = static_cast<std::byte>(rng.below(256));
  fill(m.super_scale, rng);
  if (m.super_minimum) fill(m.super_minimum, rng);
  if (bias) {
    w.bias = OwnedTensor::allocate(DType::f32, {size.out});
    for (float& b : w.bias.as<float>()) b = static_cast<float>(rng.normal());
  }
  return w;
}

std::vector<float> random_rows(int64_t rows, int64_t columns, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(rows * columns));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

// Returns the packed weight with the kernels of this instruction set, or of the next lower one that has them.
Linear pack(const LinearWeight& w, Isa isa) {
  Linear linear{.out = w.out, .in = w.in, .spec = w.spec, .packed = {}, .bias = {}};
  for (int set = 0; set <= static_cast<int>(isa); ++set)
    for (const LinearKernel& row : super_kernels(static_cast<Isa>(set)))
      if (row.accepts(w.spec, w.out, w.in)) linear.kernels[static_cast<int>(row.mode)] = &row;
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
  input.prepared = cpu::prepare(form, isa, x.data(), rows, w.in, group, 8, input.scratch.data(), 0, rows);
  return input;
}

// Returns the integer of row m, column c as prepared.
int integer_of(const Prepared& p, int64_t m, int64_t c) {
  const auto* span = static_cast<const int8_t*>(p.plane0) + (c / lowbit::kSpan * p.rows + m) * p.stride;
  const int64_t i = c % lowbit::kSpan;
  if (p.form == Form::i16) {
    int16_t word;
    std::memcpy(&word, span + 2 * (i % 4 == 1 || i % 4 == 2 ? i ^ 3 : i), 2);
    return word;
  }
  return p.form == Form::i8x2 ? 128 * span[i] + span[lowbit::kSpan + i] : span[i];
}

std::vector<float> multiply(const Linear& w, Activations mode, const Input& input, std::vector<float> y = {}) {
  const bool add = !y.empty();
  if (!add) y.assign(static_cast<size_t>(input.prepared.rows * w.out), std::numeric_limits<float>::quiet_NaN());
  const LinearKernel& k = *w.kernels[static_cast<int>(mode)];
  k.multiply(w, input.prepared, 0, (w.out + k.block - 1) / k.block, y.data(), w.out, add);
  return y;
}

// Compares y with the exact value, once for the activations as prepared and once for those before. A group's terms are
// (d s) s_x I and (m t) s_x S. I and S are exact, and so are d s and m t, which have 11 + 8 bits. Then come at most 3
// roundings in either term (I itself, the scale times s_x or s_x times S, and the product), one of every sum, of which
// there are two a group, and those of the bias and of the sum into y. For x itself |x - s_x q| <= s_x / 2 from rounding
// to the integer, and the 3 roundings of x / s_x and of s_x add less than 16319 * 3 u.
void expect_conforming(const LinearWeight& w, const Prepared& p, const std::vector<float>& x,
                       const std::vector<float>& before, const std::vector<float>& y) {
  const auto& m = std::get<SuperBlock>(w.main);
  const int64_t g = w.spec.group, groups = w.spec.groups(w.in), supers = w.spec.supers(w.in);
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t o = 0; o < w.out; ++o) {
      double value = 0, magnitude = 0, unprepared = 0, step = 0;
      for (int64_t i = 0; i < groups; ++i) {
        const auto super = static_cast<size_t>(o * supers + i * g / w.spec.super);
        const double scale = double{to_float(m.super_scale.as<const f16>()[super])} * m.scale_of(o * groups + i);
        const double minimum =
            m.super_minimum ? double{to_float(m.super_minimum.as<const f16>()[super])} * m.minimum_of(o * groups + i)
                            : 0;
        const double of_x = p.scale[i * g / p.group * p.rows + row];
        int64_t integer = 0, sum = 0;
        for (int64_t c = i * g; c < std::min(w.in, (i + 1) * g); ++c) {
          const int code = m.codes.get(o, c), q = !w.spec.symmetric          ? code
                                                  : w.spec.has_fixed_table() ? kFixedTable[code]
                                                                             : code - (1 << (w.spec.bits - 1));
          integer += int64_t{q} * integer_of(p, row, c), sum += integer_of(p, row, c);
          unprepared += (scale * q - minimum) * x[row * w.in + c];
          step += std::abs(scale * q - minimum) * of_x * (0.5 + 3 * kUnit * lowbit::kSteps16);
        }
        const double first = scale * of_x * static_cast<double>(integer),
                     second = minimum * of_x * static_cast<double>(sum);
        value += first - second, magnitude += std::abs(first) + std::abs(second);
      }
      const double bias = w.bias ? double{w.bias.as<const float>()[o]} : 0.0,
                   old = before.empty() ? 0.0 : double{before[row * w.out + o]};
      const double bound = gamma(2 * static_cast<double>(groups) + 5) * (magnitude + std::abs(bias) + std::abs(old));
      const double got = y[row * w.out + o];
      ASSERT_LE(std::abs(got - (value + bias + old)), bound) << "row " << row << " output " << o;
      ASSERT_LE(std::abs(got - (unprepared + bias + old)), bound + step) << "row " << row << " output " << o;
    }
}

TEST(Super, IntegerFormsConformForEveryFormatIsaAndRaggedSize) {
  for (const Isa isa : supported_isas())
    for (const char* format : kFormats)
      for (const Size size : kSizes) {
        const bool odd = size.out == 37;
        const LinearWeight weight = random_weight(parse_format(format), size, 7 + size.out, odd);
        const Linear w = pack(weight, isa);
        for (const int64_t rows : {1, 5}) {
          const std::vector<float> x = random_rows(rows, size.in, 11);
          for (const Activations mode : kIntegers) {
            SCOPED_TRACE(fmt::format("{} {} in {}", format, w.kernels[static_cast<int>(mode)]->name, size.in));
            const Input input = prepare_for(w, mode, isa, x, rows);
            const std::vector<float> before = odd ? random_rows(rows, size.out, 13) : std::vector<float>{};
            expect_conforming(weight, input.prepared, x, before, multiply(w, mode, input, before));
            if (HasFatalFailure()) return;
          }
        }
      }
}

// An output is a sum of `in` products in FP32, with two roundings each.
TEST(Super, Fp32FormConformsToDecode) {
  for (const Isa isa : supported_isas())
    for (const char* format : kFormats)
      for (const Size size : kSizes) {
        const LinearWeight weight = random_weight(parse_format(format), size, 17);
        const std::vector<float> values = decode(weight), x = random_rows(8, size.in, 19);
        const Linear w = pack(weight, isa);
        const Input input = prepare_for(w, Activations::f32, isa, x, 8);
        const std::vector<float> y = multiply(w, Activations::f32, input);
        for (int64_t m = 0; m < 8; ++m)
          for (int64_t o = 0; o < size.out; ++o) {
            double value = 0, magnitude = 0;
            for (int64_t c = 0; c < size.in; ++c) {
              const double term = double{values[o * size.in + c]} * x[m * size.in + c];
              value += term, magnitude += std::abs(term);
            }
            ASSERT_LE(std::abs(y[m * size.out + o] - value), gamma(static_cast<double>(size.in) + 1) * magnitude)
                << format << " " << w.kernels[0]->name << " row " << m << " output " << o;
          }
      }
}

TEST(Super, ARowHasTheSameBitsInEveryBatch) {
  for (const Isa isa : supported_isas())
    for (const char* format : kFormats) {
      const Linear w = pack(random_weight(parse_format(format), {37, 352}, 23, true), isa);
      const std::vector<float> x = random_rows(150, w.in, 29);
      for (const Activations mode : {Activations::f32, Activations::a16, Activations::a8}) {
        const std::vector<float> all = multiply(w, mode, prepare_for(w, mode, isa, x, 150));
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 129}) {
          const int64_t first = 150 - rows;
          const std::vector<float> some(x.begin() + first * w.in, x.end());
          const std::vector<float> y = multiply(w, mode, prepare_for(w, mode, isa, some, rows));
          ASSERT_EQ(std::memcmp(y.data(), all.data() + first * w.out, y.size() * 4), 0)
              << format << " " << w.kernels[static_cast<int>(mode)]->name << " " << rows << " rows";
        }
      }
    }
}

TEST(Super, BlocksGiveTheSameBitsOnAnyNumberOfThreads) {
  for (const Isa isa : supported_isas()) {
    const Linear w = pack(random_weight(parse_format("int6g16k"), {150, 352}, 31), isa);
    const std::vector<float> x = random_rows(5, w.in, 37);
    const LinearKernel& k = *w.kernels[1];
    const Input input = prepare_for(w, Activations::a16, isa, x, 5);
    const std::vector<float> whole = multiply(w, Activations::a16, input);
    ThreadPool pool(3);
    std::vector<float> y(whole.size());
    pool.run((w.out + k.block - 1) / k.block,
             [&](int64_t block, int) { k.multiply(w, input.prepared, block, block + 1, y.data(), w.out, false); });
    ASSERT_EQ(y, whole) << k.name;
  }
}

TEST(Super, DecodeRowGivesTheFormatsOwnValuesAndPackingKeepsTheBytes) {
  for (const char* format : kFormats)
    for (const Size size : kSizes) {
      const FormatSpec spec = parse_format(format);
      const LinearWeight weight = random_weight(spec, size, 41);
      const Linear w = pack(weight, Isa::portable);
      const std::vector<float> expected = decode(weight);
      std::vector<float> row(static_cast<size_t>(size.in));
      for (int64_t o = 0; o < size.out; ++o) {
        w.kernels[0]->decode_row(w, o, row.data());
        ASSERT_EQ(std::memcmp(row.data(), expected.data() + o * size.in, row.size() * 4), 0) << format << " row " << o;
      }
      // Whole blocks and spans hold the stored bytes, at most 63 bytes of alignment, and the table.
      if (size.out == 16) {
        EXPECT_GE(w.bytes(), stored_bytes(spec, 16, 512)) << format;
        EXPECT_LE(w.bytes(), stored_bytes(spec, 16, 512) + 63 + 64) << format;
      }
    }
}

// All codes, scales and minima are at their ends, with activations at both ends of their range.
TEST(Super, TheLargestIntegersFit) {
  for (const Isa isa : supported_isas())
    for (const char* format : kFormats)
      for (const bool top : {true, false}) {
        const FormatSpec spec = parse_format(format);
        LinearWeight weight = random_weight(spec, {16, 352}, 43);
        auto& m = std::get<SuperBlock>(weight.main);
        const std::vector<uint8_t> codes(352, static_cast<uint8_t>(top ? (1 << spec.bits) - 1 : 0));
        for (int64_t o = 0; o < 16; ++o) m.codes.set_row(o, codes);
        for (OwnedTensor* t : {&m.scale, &m.minimum})
          for (int64_t i = 0; *t && i < t->view.bytes(); ++i)
            t->view.data[i] = static_cast<std::byte>(spec.symmetric ? (top ? 127 : 128) : 255);
        const Linear w = pack(weight, isa);
        for (const float end : {1.0f, -1.0f})
          for (const Activations mode : kIntegers) {
            SCOPED_TRACE(fmt::format("{} {}", format, w.kernels[static_cast<int>(mode)]->name));
            const std::vector<float> x(2 * 352, end);
            const Input input = prepare_for(w, mode, isa, x, 2);
            expect_conforming(weight, input.prepared, x, {}, multiply(w, mode, input));
            if (HasFatalFailure()) return;
          }
      }
}

TEST(Super, NotANumberAndInfinityReachEveryOutputOfTheirRowAndNoOther) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Isa isa : supported_isas())
      for (const char* format : {"int4g32zk", "int6g16k"}) {
        const Linear w = pack(random_weight(parse_format(format), {20, 352}, 47), isa);
        std::vector<float> x = random_rows(2, w.in, 53);
        x[77] = bad;
        for (const Activations mode : kIntegers) {
          const std::vector<float> y = multiply(w, mode, prepare_for(w, mode, isa, x, 2));
          for (int64_t o = 0; o < w.out; ++o) {
            EXPECT_FALSE(std::isfinite(y[o])) << format << " " << o;
            EXPECT_TRUE(std::isfinite(y[w.out + o])) << format << " " << o;
          }
        }
      }
}

}  // namespace
}  // namespace fidelio::cpu
