// These tests check the latents of every format. Latents give back the bytes that they came from and decode to what
// the format decodes to. Their gradients are those of the values: by finite differences where the values are smooth,
// and by whole steps where they are not.
#include <algorithm>

#include "formats/small_float.h"
#include "train/gradient_check.h"
#include "train/host/rounding.h"
#include "train/matrix.h"

namespace fidelio::train {
namespace {

using Values = std::vector<double>;

const std::vector<std::string> kFormats = {
    "int2g64zs8", "int3g64zs8", "int4g128z", "int4g64", "int5g32zs8", "int6g64zs8", "int7g64z", "int8c", "int8g64s8",
    "lut2g64",    "lut3g64",    "lut4g64",   "lut5g32", "lut6g64",    "fp4g16",     "fp4g16z",  "fp8"};

std::span<uint8_t> bytes(const OwnedTensor& t) {
  return {reinterpret_cast<uint8_t*>(t.view.data), static_cast<size_t>(t.view.bytes())};
}

// Returns a weight of this format in which every field is random but valid. The last groups are incomplete.
LinearWeight random_weight(const std::string& name, int64_t out = 19, int64_t in = 136) {
  LinearWeight w = allocate_weight(parse_format(name), out, in);
  Rng rng(11);
  const int most = 1 << w.spec.bits;
  const auto scale_of = [&](float size) { return size * static_cast<float>(0.5 + rng.uniform()); };
  Codes* codes = nullptr;
  if (auto* m = std::get_if<IntGroup>(&w.main)) {
    codes = &m->codes;
    if (m->row_scale) {
      for (uint8_t& s : m->scale.as<uint8_t>()) s = static_cast<uint8_t>(100 + rng.below(156));
      for (float& r : m->row_scale.as<float>()) r = scale_of(1e-4f);
    } else {
      for (f16& s : m->scale.as<f16>()) s = to_f16(scale_of(0.02f));
    }
    for (int64_t row = 0; m->zero && row < out; ++row)
      for (int64_t g = 0; g < w.spec.groups(in); ++g) set_zero(*m, row, g, static_cast<int>(rng.below(most)));
  } else if (auto* grid = std::get_if<VectorCode>(&w.main)) {
    codes = &grid->codes;
    for (int k = 0; k < most; ++k) grid->codebook.as<int8_t>()[k] = static_cast<int8_t>(-127 + 254 * k / (most - 1));
    for (int8_t& s : grid->scale.as<int8_t>()) s = static_cast<int8_t>(rng.below(2) == 0 ? 90 : -110);
    for (float& r : grid->row_scale.as<float>()) r = scale_of(1e-5f);
  } else {
    auto& block = std::get<FpBlock>(w.main);
    codes = &block.codes;
    if (block.scale)
      for (uint8_t& s : bytes(block.scale)) s = static_cast<uint8_t>(0x38 + rng.below(8));
    if (block.offset)
      for (uint8_t& s : bytes(block.offset)) s = static_cast<uint8_t>(0x20 + rng.below(8));
    for (float& r : block.row_scale.as<float>()) r = scale_of(0.01f);
  }
  for (int64_t row = 0; row < out; ++row)
    for (int64_t c = 0; c < in; ++c) {
      uint8_t q = static_cast<uint8_t>(rng.below(most));
      if (w.spec.kind == Kind::fp4 && q == 8) q = 0;  // zero has only one code
      // These codes are NaN and a second zero.
      if (w.spec.kind == Kind::fp8 && ((q & 0x7f) == 0x7f || q == 0x80)) q = 0;
      codes->set(row, c, q);
    }
  return w;
}

class Format : public testing::TestWithParam<std::string> {};

TEST_P(Format, LatentsGiveTheBytesTheyCameFrom) {
  const LinearWeight w = random_weight(GetParam());
  const std::vector<float> expected = decode(w);
  std::vector<float> source = expected;  // the source is anywhere near: within the cell or beyond it
  Rng rng(5);
  for (float& x : source) x += 0.01f * static_cast<float>(rng.normal());
  Host<float> host(2);
  for (const std::vector<float>& from : {source, std::vector<float>{}}) {
    Matrix<Host<float>> matrix(host, "m", w, from, 0.45f);
    const LinearWeight back = matrix.encode();
    const auto a = stored_tensors(w), b = stored_tensors(back);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(std::memcmp(a[i].tensor.data, b[i].tensor.data, static_cast<size_t>(a[i].tensor.bytes())), 0)
          << a[i].suffix;
    // The values are equal but for the rounding of one product: scale (level - zero) in both places.
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(matrix.view().weight[i], expected[i], 4e-7 * std::abs(expected[i]) + 1e-9) << i;
  }
}

// Compares what backward() makes of dL/dvalue with the values themselves.
TEST_P(Format, GradientsOfLatents) {
  const LinearWeight w = random_weight(GetParam());
  const LevelTable table = level_table(w);
  const GroupValues groups = group_values(w);
  const std::vector<float> positions = start_positions(w, table, groups, {}, 0.45f);
  const CodeSizes sizes{w.out, w.in, w.spec.group_size(w.in), w.spec.groups(w.in),
                        static_cast<int>(table.level.size())};
  const int64_t n = w.out * w.in, each = w.out * sizes.groups;
  Host<double> host(2);
  const auto wide = [](const std::vector<float>& x) { return Values(x.begin(), x.end()); };
  Values u = wide(positions), t = wide(groups.group_scale), r = wide(groups.row_scale), z = wide(groups.zero),
         o = wide(groups.group_offset), level = wide(table.level);
  Values scale(each), shift(each), offset(each), value(n);
  const auto or_null = [](Values& x, bool there) { return there ? x.data() : nullptr; };
  const ScaleView<double> scales{scale_rule(w.spec),     w.out,
                                 sizes.groups,           z.empty() ? 0 : 1 << w.spec.bits,
                                 or_null(t, !t.empty()), or_null(r, !r.empty()),
                                 or_null(z, !z.empty()), or_null(o, !o.empty())};
  const CodeView<double> codes{u.data(), level.data(), scale.data(), or_null(shift, !z.empty()),
                               or_null(offset, !o.empty())};
  const Values weights = normal_values(8, n);
  const auto f = [&](bool resolve) {
    if (resolve) host.resolve(scales, {scale.data(), shift.data(), offset.data()});
    host.decode(sizes, codes, value.data());
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += weights[i] * value[i];
    return sum;
  };
  f(true);
  Values du = weights, dscale(each), dshift(each), doffset(each), dlevel(level.size());
  host.decode_backward(
      sizes, codes,
      {du.data(), dscale.data(), or_null(dshift, !z.empty()), or_null(doffset, !o.empty()), dlevel.data()});
  std::vector<Argument> smooth = {{"scale", scale, dscale}, {"level", level, dlevel}};
  if (!o.empty()) smooth.push_back({"offset", offset, doffset});
  expect_gradients([&] { return f(false); }, smooth);
  f(true);

  Values dt(t.size()), dr(r.size()), doff(o.size());
  host.resolve_backward(scales, {dscale.data(), doffset.data(), or_null(dt, !t.empty()), or_null(dr, !r.empty()),
                                 or_null(doff, !o.empty())});
  if (!r.empty()) expect_gradients([&] { return f(true); }, {{"row_scale", r, dr}});
  // Multiples are whole numbers, so one step is exact.
  if (w.spec.kind == Kind::grid || w.spec.scale == ScaleKind::u8) {
    const double start = f(true);
    for (size_t i = 0; i < t.size(); i += 7) {
      t[i] -= 1;
      EXPECT_NEAR(start - f(true), dt[i], 1e-9 * (1 + std::abs(dt[i])));
      t[i] += 1;
    }
  }
  // Each code moves a step up and down. Away from the ends of the range, the gradient is the mean slope of both.
  f(true);
  for (int64_t i = 0; i < n; i += 13) {
    const int q =
        code_of(static_cast<float>(u[i]), shift[(i / w.in) * sizes.groups + (i % w.in) / sizes.group], sizes.levels);
    if (q == 0 || q + 1 == sizes.levels) continue;
    u[i] += 1;
    const double above = f(false);
    u[i] -= 2;
    EXPECT_NEAR((above - f(false)) / 2, du[i], 1e-9 * (1 + std::abs(du[i])));
    u[i] += 1;
  }
}

// A code inside the range keeps its value when the zero point moves. A code beyond its ends loses a step, and is not
// pushed further out.
TEST(Codes, ClampedCodesMoveWithTheirZeroPoint) {
  const CodeSizes sizes{1, 4, 4, 1, 8};
  Values u = {-1, 0, 6, -6}, level = {0, 1, 2, 3, 4, 5, 6, 7}, scale = {0.5}, shift = {3}, value(4);
  const CodeView<double> view{u.data(), level.data(), scale.data(), shift.data(), nullptr};
  Host<double> host(1);
  host.decode({1, 4, 4, 1, 8}, view, value.data());
  EXPECT_EQ(value, (Values{-0.5, 0, 2, -1.5}));
  Values codes = {1, 1, -1, 1}, dscale(1), dshift(1);
  host.decode_backward(sizes, view, {codes.data(), dscale.data(), dshift.data(), nullptr, nullptr});
  EXPECT_EQ(codes, (Values{0.5, 0.5, 0, 0}));  // both clamped codes would go further out
  EXPECT_EQ(dshift[0], -0.5 * -1 + -0.5 * 1);
  codes = {1, 1, 1, -1};
  host.decode_backward(sizes, view, {codes.data(), dscale.data(), dshift.data(), nullptr, nullptr});
  EXPECT_EQ(codes, (Values{0.5, 0.5, 0.5, -0.5}));  // they may come back
}

// round_f16 and the like give what formats/ gives, over all exponents.
TEST(Rounding, AsStoredFormatsRound) {
  Rng rng(2);
  for (int i = 0; i < 20000; ++i) {
    const float x = static_cast<float>(std::ldexp(rng.normal(), static_cast<int>(rng.below(40)) - 28));
    if (std::abs(x) < 65504) {
      ASSERT_EQ(round_f16(x), to_float(to_f16(x))) << x;
    }
    ASSERT_EQ(round_bf16(x), to_float(to_bf16(x))) << x;
  }
  for (float x = -448; x <= 448; x += 0.37f) ASSERT_EQ(round_e4m3(x), e4m3_to_float(to_e4m3(x))) << x;
  EXPECT_EQ(round_e4m3(0.3f), 0.3125f);
  EXPECT_EQ(round_e4m3(1e-3f), 0x1p-9f);
}

INSTANTIATE_TEST_SUITE_P(All, Format, testing::ValuesIn(kFormats), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fidelio::train
