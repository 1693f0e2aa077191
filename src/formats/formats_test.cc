#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "core/rng.h"
#include "formats/finite.h"
#include "formats/linear_weight.h"
#include "formats/small_float.h"

namespace fidelio {
namespace {

std::vector<std::string> all_formats() {
  std::vector<std::string> all = {"f32", "f16", "bf16", "fp4g16", "fp4g16z", "mxfp4", "fp8"};
  for (int b = 2; b <= 8; ++b)
    for (const char* zero : {"", "z"}) {
      all.push_back(fmt::format("int{}c{}", b, zero));
      for (int g : {16, 32, 64, 128})
        for (const char* scale : {"", "s8"}) all.push_back(fmt::format("int{}g{}{}{}", b, g, zero, scale));
    }
  for (int b = 2; b <= 6; ++b)
    for (int g : {16, 32, 64, 128}) all.push_back(fmt::format("lut{}g{}", b, g));
  for (const char* super : {"int2g16zk", "int3g16k", "int4g32zk", "int5g32zk", "int6g16k", "lut4g32k"})
    for (const char* columns : {"", "128"}) all.push_back(fmt::format("{}{}", super, columns));
  for (const char* super : {"int4g32zk32", "int5g32zk32", "lut4g32k32"}) all.push_back(super);
  for (const char* vectors : {"vq8k9s1", "vq8k12s1+r2.23", "vq8k12s4", "vq8k14s4+r20.0", "vq8k16s4+r0.1", "vq8k16s8",
                              "vq8k20s8+r4.7", "vq8k12s4m", "vq8k20s8m+r4.7"})
    all.push_back(vectors);
  return all;
}

struct Size {
  int64_t out, in;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {2, 128}, {5, 130}, {4, 257}, {16, 96}};

// Fills a weight with random codes whose indices exist, levels that can be negated, and corrections spread over the
// first rows.
void make_valid(SignedVectors& m, Rng& rng) {
  const VectorShape& s = m.shape;
  for (int64_t row = 0; row < s.out; ++row)
    for (int64_t v = 0; v < s.vectors; ++v)
      set_vector(m, row, v,
                 {static_cast<int>(rng.below(static_cast<uint64_t>(s.entries))),
                  static_cast<uint8_t>(rng.below(uint64_t{1} << s.signs))});
  for (int8_t& level : m.codebook.as<int8_t>()) level = std::max<int8_t>(level, -127);
  if (s.sparse == 0) return;
  int64_t left = s.sparse;
  for (int64_t row = 0; row < s.out; ++row) {
    const int64_t count = std::min(left, (s.sparse + s.out - 1) / s.out);
    m.sparse_count.as<uint16_t>()[row] = static_cast<uint16_t>(count);
    for (int64_t i = 0; i < count; ++i)
      m.sparse_index.as<uint16_t>()[s.sparse - left + i] = static_cast<uint16_t>(s.vectors - count + i);
    left -= count;
  }
}

// Returns a weight with random bytes in every tensor, except that small floats avoid NaN.
LinearWeight random_weight(const FormatSpec& spec, int64_t out, int64_t in, uint64_t seed) {
  LinearWeight w = allocate_weight(spec, out, in);
  Rng rng(seed);
  for (StoredTensor& t : whole_tensors(w)) {
    if (t.tensor.dtype == DType::f32 || t.tensor.dtype == DType::f16 || t.tensor.dtype == DType::bf16) {
      std::vector<float> values(static_cast<size_t>(t.tensor.elements()));
      for (float& v : values) v = static_cast<float>(rng.normal());
      convert_from_float(values, t.tensor);
    } else {
      for (int64_t i = 0; i < t.tensor.bytes(); ++i) {
        const auto byte = static_cast<uint8_t>(rng.below(256));
        const bool fp8_codes = spec.kind == Kind::fp8 && t.suffix.starts_with(".plane");
        const bool power = spec.kind == Kind::mxfp4 && t.suffix == ".scale";
        const bool nan = (power && byte == 255) || (t.tensor.dtype == DType::f8_e4m3 && (byte & 0x7f) == 0x7f) ||
                         (fp8_codes && ((byte & 15) == 15 || byte >> 4 == 15));
        t.tensor.data[i] = std::byte(nan ? 0x55 : byte);
      }
    }
  }
  if (auto* vectors = std::get_if<SignedVectors>(&w.main)) make_valid(*vectors, rng);
  return w;
}

TEST(FormatSpec, EveryStringRoundTrips) {
  for (const std::string& text : all_formats()) EXPECT_EQ(to_string(parse_format(text)), text);
}

TEST(FormatSpec, FieldsMeanWhatTheStringSays) {
  EXPECT_EQ(parse_format("int5g64zs8"),
            (FormatSpec{.kind = Kind::integer, .bits = 5, .group = 64, .symmetric = false, .scale = ScaleKind::u8}));
  EXPECT_EQ(parse_format("int8c"), (FormatSpec{.kind = Kind::integer, .bits = 8, .group = 0}));
  EXPECT_EQ(parse_format("lut4g64"), (FormatSpec{.kind = Kind::grid, .bits = 4, .group = 64}));
  EXPECT_EQ(parse_format("fp4g16z"), (FormatSpec{.kind = Kind::fp4, .bits = 4, .group = 16, .symmetric = false}));
  EXPECT_EQ(parse_format("f32").bits, 32);
  EXPECT_EQ(parse_format("int4g128").groups(257), 3);
  EXPECT_EQ(parse_format("int4c").groups(257), 1);
}

TEST(FormatSpec, BadStringsShowTheGrammar) {
  for (const char* text : {"",
                           "int",
                           "int1g128",
                           "int9g128",
                           "int4",
                           "int4g",
                           "int4g48",
                           "int4g0128",
                           "int4g128s",
                           "int4g128s8z",
                           "int4g128zz",
                           "int4cs8",
                           "lut4c",
                           "lut7g64",
                           "lut4g64z",
                           "fp4",
                           "fp4g32",
                           "fp8g16",
                           "bf16 ",
                           " bf16",
                           "BF16",
                           "int-4g128",
                           "int4g32k",
                           "int4g64zk",
                           "int5g16zk",
                           "int6g16k32",
                           "int4g32zk256",
                           "int4g32zks8",
                           "int7g16k",
                           "lut5g32k",
                           "vq8k12",
                           "vq8k12s2",
                           "vq8k8s1",
                           "vq8k13s1",
                           "vq8k21s8",
                           "vq8k16m",
                           "vq8k16s8mm",
                           "vq8k16s8+r2.2m",
                           "vq4k12s1",
                           "vq8k12s1+r",
                           "vq8k12s1+r2",
                           "vq8k12s1+r2.20",
                           "vq8k12s1+r0.0",
                           "vq8k12s1+r20.1",
                           "int4g99999999999999999999",
                           "w4a4.atom"}) {
    try {
      parse_format(text);
      ADD_FAILURE() << "accepted \"" << text << '"';
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(fmt::format("\"{}\"", text)));
      EXPECT_THAT(e.what(), testing::HasSubstr("int{2..8}{g16|g32|g64|g128|c}[z][s8]"));
    }
  }
}

TEST(FormatSpec, PaperBitsAreTableFive) {
  for (int b = 4; b <= 8; ++b) {
    EXPECT_DOUBLE_EQ(paper_bits(parse_format(fmt::format("int{}g128z", b))), b + 0.15625);
    EXPECT_DOUBLE_EQ(paper_bits(parse_format(fmt::format("int{}g128", b))), b + 0.125);
  }
  EXPECT_DOUBLE_EQ(paper_bits(parse_format("fp4g16")), 4.5);
  EXPECT_DOUBLE_EQ(paper_bits(parse_format("fp4g16z")), 5.0);
  EXPECT_DOUBLE_EQ(paper_bits(parse_format("fp8")), 8.0);
}

// These are the sizes of ggml's blocks.
TEST(FormatSpec, PaperBitsOfSuperBlocksAreThoseOfGgml) {
  const std::map<std::string, double> bits = {
      {"int2g16zk", 84 * 8 / 256.0},  {"int3g16k", 110 * 8 / 256.0},  {"int4g32zk", 144 * 8 / 256.0},
      {"int5g32zk", 176 * 8 / 256.0}, {"int6g16k", 210 * 8 / 256.0},  {"lut4g32k", 136 * 8 / 256.0},
      {"int4g32zk32", 20 * 8 / 32.0}, {"int5g32zk32", 24 * 8 / 32.0}, {"lut4g32k32", 18 * 8 / 32.0}};
  for (const auto& [format, expected] : bits) EXPECT_DOUBLE_EQ(paper_bits(parse_format(format)), expected) << format;
}

TEST(FormatSpec, FormatsThatAreOnlyReadAreNoTargets) {
  EXPECT_EQ(to_string(parse_target("int4g32zs8")), "int4g32zs8");
  EXPECT_THAT([] { parse_target("int4g32zk"); }, testing::ThrowsMessage<Error>(testing::HasSubstr("int4g32zs8")));
  EXPECT_THAT([] { parse_target("lut4g32k"); }, testing::ThrowsMessage<Error>(testing::HasSubstr("lut4g32")));
}

// The predicted size must equal the size of the file. The closed formula is compared with the sum over all tensors.
TEST(LinearWeight, StoredBytesAreTheSumOfTheTensors) {
  for (const std::string& text : all_formats())
    for (const auto [out, in] : kSizes) {
      const FormatSpec spec = parse_format(text);
      const LinearWeight w = allocate_weight(spec, out, in);
      int64_t sum = 0;
      for (const StoredTensor& t : stored_tensors(w)) sum += t.tensor.bytes();
      EXPECT_EQ(stored_bytes(spec, out, in), sum) << text << " " << out << "x" << in;
      EXPECT_EQ(w.stored_bytes(), sum);
    }
  // This is exact where nothing is ragged: b + (16 + b) / 128 bits a weight.
  EXPECT_EQ(stored_bytes(parse_format("int4g128z"), 256, 2048), 256 * 2048 * (4 + 20.0 / 128) / 8);
}

TEST(Codes, EveryWidthHoldsEveryCode) {
  for (int bits = 2; bits <= 8; ++bits) {
    const int64_t rows = 3, columns = 37;
    Codes by_element = Codes::allocate(bits, rows, columns), by_row = Codes::allocate(bits, rows, columns);
    Rng rng(bits);
    std::vector<std::vector<uint8_t>> want(rows, std::vector<uint8_t>(columns));
    for (int pass = 0; pass < 2; ++pass)  // The second pass overwrites the first, so set must clear old bits.
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c)
          by_element.set(r, c, want[r][c] = static_cast<uint8_t>(rng.below(1u << bits)));
        by_row.set_row(r, want[r]);
      }
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<uint8_t> got(columns);
      by_element.get_row(r, got);
      EXPECT_EQ(got, want[r]);
      for (int64_t c = 0; c < columns; ++c) EXPECT_EQ(by_row.get(r, c), want[r][c]) << bits << " " << r << " " << c;
    }
    for (size_t p = 0; p < by_row.planes.size(); ++p)
      EXPECT_EQ(0,
                std::memcmp(by_row.planes[p].view.data, by_element.planes[p].view.data, by_row.planes[p].view.bytes()));
  }
}

TEST(Codes, PlanesAreTheBinaryDigitsHighFirst) {
  Codes c = Codes::allocate(7, 1, 3);
  c.set(0, 2, 0b1011'01'1);
  ASSERT_EQ(c.planes.size(), 3u);
  EXPECT_EQ(c.planes[0].as<uint8_t>()[1], 0b1011);  // These are 4 bits; column 2 is the low nibble of byte 1.
  EXPECT_EQ(c.planes[1].as<uint8_t>()[0], 0b01 << 4);
  EXPECT_EQ(c.planes[2].as<uint8_t>()[0], 1 << 2);
  EXPECT_THROW(plane_widths(1), Error);
  EXPECT_THROW(plane_widths(9), Error);
}

TEST(Zeros, EveryWidthAtEveryPlace) {
  for (int bits = 2; bits <= 8; ++bits) {
    const FormatSpec spec = parse_format(fmt::format("int{}g16z", bits));
    LinearWeight w = allocate_weight(spec, 3, 16 * 11);
    IntGroup& m = std::get<IntGroup>(w.main);
    Rng rng(bits);
    std::vector<int> want(33);
    for (int pass = 0; pass < 2; ++pass)
      for (int i = 0; i < 33; ++i) set_zero(m, i / 11, i % 11, want[i] = static_cast<int>(rng.below(1u << bits)));
    for (int i = 0; i < 33; ++i) EXPECT_EQ(get_zero(m, i / 11, i % 11), want[i]) << bits << " " << i;
  }
}

TEST(SmallFloat, E4m3RoundTripsAndRoundsToNearestEven) {
  std::vector<float> values;  // These are the non-negative finite values 0 .. 448, in ascending order.
  for (int i = 0; i < 0x7f; ++i) values.push_back(e4m3_to_float(static_cast<uint8_t>(i)));
  for (int i = 0; i < 256; ++i)
    if ((i & 0x7f) != 0x7f) {
      EXPECT_EQ(to_e4m3(e4m3_to_float(static_cast<uint8_t>(i))), i);
    }
  for (int i = 0; i + 1 < 0x7f; ++i) {
    const float middle = (values[i] + values[i + 1]) / 2;
    EXPECT_EQ(to_e4m3(middle), i % 2 == 0 ? i : i + 1);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)), i);
    EXPECT_EQ(to_e4m3(-std::nextafter(middle, 1e9f)), 0x80 | (i + 1));
  }
  EXPECT_EQ(values[1], 0x1p-9f);
  EXPECT_EQ(values.back(), 448.0f);
  EXPECT_EQ(to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(to_e4m3(NAN), 0x7f);
}

TEST(SmallFloat, E2m1TakesTheNearest) {
  for (int code = 0; code < 16; ++code) EXPECT_EQ(to_e2m1(kE2m1[code]), code);
  for (int code = 0; code < 7; ++code) {
    const float middle = (kE2m1[code] + kE2m1[code + 1]) / 2;
    EXPECT_EQ(to_e2m1(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(to_e2m1(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(to_e2m1(-std::nextafter(middle, 9.0f)), 8 | (code + 1));
  }
  EXPECT_EQ(to_e2m1(100.0f), 7);
}

TEST(Decode, IntegersByHand) {
  LinearWeight w = allocate_weight(parse_format("int3g16z"), 1, 18);  // The second group has two columns.
  IntGroup& m = std::get<IntGroup>(w.main);
  m.scale.as<f16>()[0] = to_f16(0.5f);
  m.scale.as<f16>()[1] = to_f16(2.0f);
  set_zero(m, 0, 0, 3);
  set_zero(m, 0, 1, 6);
  m.codes.set(0, 0, 7);
  m.codes.set(0, 17, 1);
  const std::vector<float> v = decode(w);
  EXPECT_EQ(v[0], 2.0f);     // This is .5 (7 - 3).
  EXPECT_EQ(v[1], -1.5f);    // This is .5 (0 - 3).
  EXPECT_EQ(v[16], -12.0f);  // This is 2 (0 - 6).
  EXPECT_EQ(v[17], -10.0f);

  w = allocate_weight(parse_format("int4g16s8"), 1, 2);
  IntGroup& s = std::get<IntGroup>(w.main);
  s.row_scale.as<float>()[0] = 0.25f;
  s.scale.as<uint8_t>()[0] = 200;
  s.codes.set(0, 0, 15);
  EXPECT_EQ(decode(w), (std::vector<float>{350.0f, -400.0f}));  // They are 50 (15 - 8) and 50 (0 - 8).
}

TEST(Decode, SuperBlocksByHand) {
  LinearWeight w = allocate_weight(parse_format("int4g32zk128"), 1, 130);  // The last super-block has two columns.
  auto* m = &std::get<SuperBlock>(w.main);
  m->super_scale.as<f16>()[0] = to_f16(0.5f), m->super_scale.as<f16>()[1] = to_f16(2.0f);
  m->super_minimum.as<f16>()[0] = to_f16(0.25f), m->super_minimum.as<f16>()[1] = to_f16(-1.0f);
  m->scale.as<uint8_t>()[1] = 63, m->minimum.as<uint8_t>()[1] = 7;
  m->scale.as<uint8_t>()[4] = 3, m->minimum.as<uint8_t>()[4] = 5;
  m->codes.set(0, 32, 15), m->codes.set(0, 129, 2);
  std::vector<float> v = decode(w);
  EXPECT_EQ(v[0], 0.0f);
  EXPECT_EQ(v[32], 470.75f);  // This is .5 63 15 - .25 7.
  EXPECT_EQ(v[33], -1.75f);
  EXPECT_EQ(v[129], 17.0f);  // This is 2 3 2 + 5.

  w = allocate_weight(parse_format("int2g16zk"), 1, 16);
  m = &std::get<SuperBlock>(w.main);
  m->super_scale.as<f16>()[0] = to_f16(1.0f), m->super_minimum.as<f16>()[0] = to_f16(1.0f);
  m->scale.as<uint8_t>()[0] = 9 | 4 << 4;
  m->codes.set(0, 0, 3);
  EXPECT_EQ(decode(w)[0], 23.0f);  // This is 9 3 - 4.

  w = allocate_weight(parse_format("int6g16k"), 1, 16);
  m = &std::get<SuperBlock>(w.main);
  m->super_scale.as<f16>()[0] = to_f16(0.5f), m->scale.as<int8_t>()[0] = -100;
  m->codes.set(0, 0, 63);
  EXPECT_EQ(decode(w)[0], -1550.0f);  // This is .5 -100 (63 - 32).

  w = allocate_weight(parse_format("lut4g32k"), 1, 32);
  m = &std::get<SuperBlock>(w.main);
  m->super_scale.as<f16>()[0] = to_f16(0.5f), m->scale.as<int8_t>()[0] = -2;
  m->codes.set(0, 0, 15);
  EXPECT_EQ(decode(w)[0], -113.0f);
  EXPECT_EQ(decode(w)[1], 127.0f);
}

TEST(Decode, GridsAndFloatsByHand) {
  LinearWeight w = allocate_weight(parse_format("lut2g16"), 1, 17);
  VectorCode& m = std::get<VectorCode>(w.main);
  m.row_scale.as<float>()[0] = 0.5f;
  m.scale.as<int8_t>()[0] = -4;
  m.scale.as<int8_t>()[1] = 3;
  for (int i = 0; i < 4; ++i) m.codebook.as<int8_t>()[i] = static_cast<int8_t>(10 * i - 15);
  m.codes.set(0, 2, 3);
  std::vector<float> v = decode(w);
  EXPECT_EQ(v[0], 30.0f);    // This is .5 * -4 * -15.
  EXPECT_EQ(v[2], -30.0f);   // This is .5 * -4 * 15.
  EXPECT_EQ(v[16], -22.5f);  // This is .5 * 3 * -15.

  w = allocate_weight(parse_format("fp4g16z"), 1, 2);
  FpBlock& f = std::get<FpBlock>(w.main);
  f.row_scale.as<float>()[0] = 0.5f;
  f.scale.view.data[0] = std::byte{to_e4m3(3.0f)};
  f.offset.view.data[0] = std::byte{to_e4m3(-2.0f)};
  f.codes.set(0, 1, 15);
  EXPECT_EQ(decode(w), (std::vector<float>{-1.0f, -10.0f}));  // They are .5 (0 - 2) and .5 (3 * -6 - 2).

  w = allocate_weight(parse_format("fp8"), 1, 2);
  FpBlock& e = std::get<FpBlock>(w.main);
  e.row_scale.as<float>()[0] = 2.0f;
  e.codes.set(0, 1, to_e4m3(-1.5f));
  EXPECT_EQ(decode(w), (std::vector<float>{0.0f, -3.0f}));
}

// The OCP specification's table of E2M1, and 2^(x - 127) by its definition: the value of every code under every scale,
// bit for bit, also where it is subnormal, infinite or no number.
TEST(Decode, Mxfp4OfAllCodesAndScales) {
  constexpr double kTable[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  LinearWeight w = allocate_weight(parse_format("mxfp4"), 256, 48);  // The last block has 16 columns.
  FpBlock& m = std::get<FpBlock>(w.main);
  for (int scale = 0; scale < 256; ++scale) {
    for (int block = 0; block < 2; ++block) m.scale.as<uint8_t>()[2 * scale + block] = static_cast<uint8_t>(scale);
    for (int column = 0; column < 48; ++column) m.codes.set(scale, column, static_cast<uint8_t>(column % 16));
  }
  const std::vector<float> values = decode(w);
  for (int scale = 0; scale < 256; ++scale)
    for (int column = 0; column < 48; ++column) {
      const float got = values[static_cast<size_t>(48 * scale + column)];
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(got));
        continue;
      }
      const auto want = static_cast<float>(kTable[column % 16] * std::pow(2.0, scale - 127));
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << scale << " " << column;
      if (std::isfinite(want)) {
        EXPECT_EQ(to_float(to_bf16(want)), want) << "BF16 holds every finite value";
      }
    }
  EXPECT_THAT([&] { check_finite(w, "w"); }, testing::ThrowsMessage<Error>(testing::HasSubstr("row 253, column 0")));
}

TEST(Decode, DenseIsTheMatrixItself) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    OwnedTensor w = OwnedTensor::allocate(t, {2, 3});
    const std::vector<float> values = {1, -2, 3, 0.5, 0.25, -8};
    convert_from_float(values, w.view);
    EXPECT_EQ(decode(make_dense(w)), values);
  }
  const OwnedTensor w = OwnedTensor::allocate(DType::bf16, {2, 3});
  EXPECT_EQ(to_string(make_dense(w).spec), "bf16");
  EXPECT_THROW(make_dense(OwnedTensor::allocate(DType::i8, {2, 3})), Error);
  EXPECT_THROW(make_dense(OwnedTensor::allocate(DType::f32, {6})), Error);
  EXPECT_THROW(make_dense(w, OwnedTensor::allocate(DType::f32, {3})), Error);  // The weight has 2 rows.
}

TEST(Decode, VectorCodesByHand) {
  // The weight has three vectors a row, of which the last has four columns.
  LinearWeight w = allocate_weight(parse_format("vq8k14s4+r20.0"), 2, 20);
  auto& m = std::get<SignedVectors>(w.main);
  ASSERT_EQ(m.shape.sparse, 1);  // This is 20 percent of six.
  m.row_scale.as<f16>()[1] = to_f16(0.5f);
  for (int c = 0; c < 20; ++c) m.column_scale.as<f16>()[c] = to_f16(c == 19 ? 4.0f : 2.0f);
  for (int j = 0; j < 8; ++j) m.codebook.as<int8_t>()[1023 * 8 + j] = static_cast<int8_t>(j - 127);
  set_vector(m, 1, 2, {1023, 0b0010});
  m.sparse_count.as<uint16_t>()[1] = 1;
  m.sparse_index.as<uint16_t>()[0] = 2;
  m.sparse_value.as<int8_t>()[1] = -3;
  m.sparse_scale.as<f16>()[0] = to_f16(0.25f);
  check_codes(w);
  std::vector<float> want(40, 0.0f);
  want[36] = -127, want[37] = -126.75f, want[38] = 125, want[39] = 248;
  EXPECT_EQ(decode(w), want);
  EXPECT_EQ(get_vector(m, 1, 2), (VectorChoice{1023, 0b0010}));
  EXPECT_EQ(get_vector(m, 1, 1), (VectorChoice{0, 0}));
  m.codebook.as<int8_t>()[77] = -128;  // No byte is the negative of -128.
  EXPECT_THROW(check_codes(w), Error);
}

TEST(VectorCode, EquationSevenGivesTheRowsOfThePapersTableSix) {
  // The rows are LLaMA-2's 7B, 13B and 70B, with the sparsities of the paper's table 9. Both tables are printed to two
  // digits.
  const std::map<std::string, double> rows = {
      {"vq8k12s1+r2.23", 2.04}, {"vq8k12s1+r2.32", 2.05}, {"vq8k12s1+r2.21", 2.04}, {"vq8k12s1+r4.73", 2.44},
      {"vq8k12s1+r4.62", 2.42}, {"vq8k12s1+r4.75", 2.45}, {"vq8k16s4+r2.23", 2.70}, {"vq8k16s4+r2.32", 2.71},
      {"vq8k16s4+r2.21", 2.70}, {"vq8k16s4+r4.73", 3.10}, {"vq8k16s4+r4.62", 3.08}, {"vq8k16s4+r4.75", 3.11},
      {"vq8k20s8+r2.23", 3.20}, {"vq8k20s8+r2.32", 3.21}, {"vq8k20s8+r2.21", 3.20}, {"vq8k20s8+r4.73", 3.60},
      {"vq8k20s8+r4.62", 3.58}, {"vq8k20s8+r4.75", 3.61}};
  for (const auto& [text, bits] : rows) EXPECT_NEAR(paper_bits(parse_format(text)), bits, 0.01) << text;
}

// A model has one shared codebook, for matrices of any size and with any corrections. It is not counted in the size of
// a matrix.
TEST(VectorCode, ASharedCodebookIsTheModelsAlone) {
  const FormatSpec spec = parse_format("vq8k20s8m+r2.2"), own = parse_format("vq8k20s8+r2.2");
  const LinearWeight w = random_weight(spec, 5000, 512, 1);  // The matrix has more than two blocks of 2^20 weights.
  const auto& m = std::get<SignedVectors>(w.main);
  EXPECT_EQ(m.shape.blocks, 1);
  EXPECT_EQ(m.shape.block_of(4999), 0);
  EXPECT_EQ(m.shape.first_row(1), 5000);
  EXPECT_EQ(shared_codebook(w)->view.shape, (Shape{4096, 8}));
  EXPECT_EQ(shared_codebook(random_weight(own, 16, 64, 1)), nullptr);
  for (const StoredTensor& t : stored_tensors(w)) EXPECT_NE(t.suffix, ".codebook");
  EXPECT_EQ(shared_name(spec), "codebooks.vq8k20s8m");
  EXPECT_EQ(shared_bytes(spec), 4096 * 8);
  EXPECT_EQ(shared_name(own), "");
  EXPECT_EQ(shared_bytes(own), 0);
  // The one block of `own` has a codebook of its own.
  EXPECT_EQ(stored_bytes(spec, 16, 64), stored_bytes(own, 16, 64) - 4096 * 8);
}

TEST(VectorCode, BlocksCoverTheRowsOnce) {
  for (const auto [out, in] : {Size{1, 8}, Size{4096, 4096}, Size{11008, 4096}, Size{9728, 2560}, Size{40, 1 << 19}}) {
    const VectorShape s = vector_shape(parse_format("vq8k12s1"), out, in);
    EXPECT_EQ(s.first_row(0), 0);
    EXPECT_EQ(s.first_row(s.blocks), out);
    for (int64_t b = 0; b < s.blocks; ++b) {
      EXPECT_LT(s.first_row(b), s.first_row(b + 1));
      EXPECT_EQ(s.block_of(s.first_row(b)), b);
      EXPECT_EQ(s.block_of(s.first_row(b + 1) - 1), b);
    }
  }
}

TEST(VectorCode, WhatAFileMayHaveWrongIsRefused) {
  const FormatSpec spec = parse_format("vq8k13s4+r20.0");
  const LinearWeight good = random_weight(spec, 5, 64, 3);
  check_codes(good);
  const auto refused = [&](auto damage) {
    LinearWeight w = random_weight(spec, 5, 64, 3);
    damage(std::get<SignedVectors>(w.main));
    EXPECT_THROW(check_codes(w), Error);
  };
  // The codebook has 512 entries, and this index is 512 or more.
  refused([](SignedVectors& m) { m.high.as<uint8_t>()[2] = 0x20; });
  refused([](SignedVectors& m) { m.sparse_count.as<uint16_t>()[0] = 9; });
  refused([](SignedVectors& m) { m.sparse_count.as<uint16_t>()[4] += 1; });
  refused([](SignedVectors& m) { m.sparse_count.as<uint16_t>()[0] -= 1; });
  refused([](SignedVectors& m) { m.sparse_index.as<uint16_t>()[1] = 8; });
  refused([](SignedVectors& m) { m.sparse_index.as<uint16_t>()[1] = m.sparse_index.as<uint16_t>()[0]; });
}

// Bytes are changed at random. Every weight is either refused or decoded from its own memory (asan checks that nothing
// else is read). Both outcomes must occur.
TEST(VectorCode, ChangedBytesAreRefusedOrDecoded) {
  int refused = 0, decoded = 0;
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    const char* format = std::array{"vq8k9s1+r20.0", "vq8k13s4+r5.0", "vq8k19s8+r9.0", "vq8k18s8m+r9.0"}[i % 4];
    const LinearWeight w = random_weight(parse_format(format), 9, 61, static_cast<uint64_t>(i));
    auto tensors = whole_tensors(w);
    const auto changes = 1 + rng.below(4);
    for (uint64_t change = 0; change < changes; ++change) {
      Tensor& t = tensors[rng.below(tensors.size())].tensor;
      t.data[rng.below(static_cast<uint64_t>(t.bytes()))] = std::byte(rng.below(256));
    }
    try {
      check_codes(w);
      decode(w);
      ++decoded;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(decoded, 0);
}

TEST(Stored, TensorsRoundTripThroughLoad) {
  for (const std::string& text : all_formats())
    for (const auto [out, in] : kSizes)
      for (const bool with_bias : {false, true}) {
        LinearWeight w = random_weight(parse_format(text), out, in, 7);
        if (with_bias) {
          w.bias = OwnedTensor::allocate(DType::f32, {out});
          w.bias.as<float>()[0] = 3;
        }
        std::map<std::string, Tensor> file;
        for (const StoredTensor& t : whole_tensors(w)) EXPECT_TRUE(file.emplace(t.suffix, t.tensor).second) << t.suffix;
        const LinearWeight back =
            load_weight(w.spec, out, in, [&](const std::string& suffix, DType dtype, const Shape& shape) {
              if (!file.contains(suffix)) return OwnedTensor{};
              const Tensor& t = file.at(suffix);
              EXPECT_TRUE(t.dtype == dtype && t.shape == shape) << suffix;
              return OwnedTensor{t, nullptr};
            });
        EXPECT_EQ(decode(back), decode(w)) << text;
        EXPECT_EQ(back.stored_bytes(), w.stored_bytes());
        EXPECT_EQ(static_cast<bool>(back.bias), with_bias);
      }
}

TEST(TakenRows, AreThoseOfTheWholeInTheOrderAskedFor) {
  for (const std::string& text : all_formats())
    for (const bool with_bias : {false, true}) {
      LinearWeight w = random_weight(parse_format(text), 16, 96, 7);
      if (with_bias) {
        w.bias = OwnedTensor::allocate(DType::f32, {16});
        for (int i = 0; i < 16; ++i) w.bias.as<float>()[i] = static_cast<float>(i);
      }
      const std::array<int32_t, 4> rows = {15, 0, 7, 8};
      if (w.spec.kind == Kind::vq) {
        EXPECT_THROW(take_rows(w, rows), Error) << text;
        continue;
      }
      const LinearWeight taken = take_rows(w, rows);
      ASSERT_EQ(taken.out, 4) << text;
      std::vector<float> expected(96), got(96);
      for (size_t i = 0; i < rows.size(); ++i) {
        decode_row(w, rows[i], expected);
        decode_row(taken, static_cast<int64_t>(i), got);
        EXPECT_EQ(got, expected) << text << " " << rows[i];
        if (with_bias) {
          EXPECT_EQ(taken.bias.as<float>()[i], w.bias.as<float>()[rows[i]]);
        }
      }
    }
}

TEST(Stored, AMissingTensorIsNamed) {
  try {
    load_weight(parse_format("int4g128z"), 2, 256, [](const std::string& suffix, DType dtype, const Shape& shape) {
      return suffix == ".zero" ? OwnedTensor{} : OwnedTensor::allocate(dtype, shape);
    });
    ADD_FAILURE() << "loaded without zeros";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("a int4g128z weight of shape (2, 256) needs a tensor .zero of U8 [2, 1]"));
  }
  EXPECT_THROW(allocate_weight(parse_format("int4g128z"), 0, 4), Error);
}

// Every cut of every integer format is compared with the definition. No bytes are copied where planes end at the cut.
TEST(HighPlanes, DecodeAtTheMiddleOfWhatTheMissingBitsCouldBe) {
  const std::map<int, std::vector<int>> cuts = {{2, {}}, {3, {2}}, {4, {}}, {5, {4}}, {6, {4}}, {7, {4, 6}}, {8, {4}}};
  for (const std::string& format : all_formats()) {
    const FormatSpec spec = parse_format(format);
    if (spec.kind != Kind::integer) continue;
    const LinearWeight w = random_weight(spec, 3, 130, 9);
    const auto& whole = std::get<IntGroup>(w.main);
    for (int bits = 1; bits <= 8; ++bits) {
      const std::vector<int>& allowed = cuts.at(spec.bits);
      const bool possible = std::find(allowed.begin(), allowed.end(), bits) != allowed.end();
      EXPECT_EQ(is_view_width(spec.bits, bits), possible) << format << " " << bits;
      if (bits < 2 || bits >= spec.bits) {
        EXPECT_THROW(high_planes(w, bits), Error) << format << " " << bits;
        continue;
      }
      const LinearWeight view = high_planes(w, bits);
      EXPECT_EQ(std::get<IntGroup>(view.main).codes.planes[0].view.data == whole.codes.planes[0].view.data, possible);
      const std::vector<float> all = decode(w), high = decode(view);
      const int span = 1 << (spec.bits - bits);
      // The values are scale (q - z) and scale (middle - z). Their difference is scale (middle - q), a multiple of
      // scale / 2.
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t c = 0; c < 130; ++c) {
          const int q = whole.codes.get(row, c), first = q / span * span;
          const int zero = spec.symmetric ? 1 << (spec.bits - 1) : get_zero(whole, row, c / spec.group_size(130));
          const double middle = first + (span - 1) / 2.0;
          if (q == zero) continue;
          // The rounding of the FP32 product is relative 2^-24.
          const double scale = double{all[row * 130 + c]} / (q - zero);
          EXPECT_NEAR(high[row * 130 + c], scale * (middle - zero), 1e-6 * std::abs(scale * (middle - zero)))
              << format << " to " << bits;
        }
    }
  }
}

// The high bits of a grid's codes are a grid whose entries are the means of the entries that share them, rounded to the
// nearest whole number.
TEST(HighPlanes, OfAGridAreAGridOfMeans) {
  for (const std::string& format : all_formats()) {
    const FormatSpec spec = parse_format(format);
    if (spec.kind != Kind::grid) continue;
    const LinearWeight w = random_weight(spec, 3, 130, 9);
    const auto& whole = std::get<VectorCode>(w.main);
    EXPECT_THROW(high_planes(w, 1), Error) << format;
    EXPECT_THROW(high_planes(w, spec.bits), Error) << format;
    for (int bits = 2; bits < spec.bits; ++bits) {
      const LinearWeight view = high_planes(w, bits);
      EXPECT_EQ(to_string(view.spec), "the " + std::to_string(bits) + " high bits of " + format);
      EXPECT_THROW(stored_tensors(view), Error);
      const std::vector<float> high = decode(view);
      const auto book = whole.codebook.as<const int8_t>();
      const int cell = 1 << (spec.bits - bits);
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t c = 0; c < 130; ++c) {
          double mean = 0;
          for (int i = 0; i < cell; ++i)
            mean += book[whole.codes.get(row, c) / cell * cell + i] / static_cast<double>(cell);
          const double scale = double{whole.row_scale.as<const float>()[row]} *
                               whole.scale.as<const int8_t>()[row * spec.groups(130) + c / spec.group];
          // The tolerance is a half for the rounding to a whole number, and 1e-6 for the FP32 roundings of the two
          // products.
          EXPECT_LE(std::abs(high[row * 130 + c] - scale * mean), std::abs(scale) * (0.5 + 128e-6)) << format;
        }
    }
  }
}

TEST(HighPlanes, AreNotAFormatOfAFile) {
  const LinearWeight w = random_weight(parse_format("int6g64zs8"), 2, 64, 1), view = high_planes(w, 4);
  EXPECT_EQ(to_string(view.spec), "the 4 high bits of int6g64zs8");
  EXPECT_THROW(stored_tensors(view), Error);
  EXPECT_THROW(high_planes(view, 4), Error);
  EXPECT_THROW(high_planes(random_weight(parse_format("lut4g64"), 2, 64, 1), 4), Error);
}

}  // namespace
}  // namespace fidelio
