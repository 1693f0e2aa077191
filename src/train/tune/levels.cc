#include "train/tune/levels.h"

#include <algorithm>
#include <cmath>

#include "formats/small_float.h"
#include "train/host/rounding.h"

namespace fidelio::train {
namespace {

std::span<uint8_t> bytes_of(const OwnedTensor& t) {
  return {reinterpret_cast<uint8_t*>(t.view.data), static_cast<size_t>(t.view.bytes())};
}

const Codes& codes_of(const LinearWeight& w) {
  if (const auto* integer = std::get_if<IntGroup>(&w.main)) return integer->codes;
  if (const auto* grid = std::get_if<VectorCode>(&w.main)) return grid->codes;
  return std::get<FpBlock>(w.main).codes;
}

// Returns what a code stands for before scale, zero point and offset.
float value_of(const LinearWeight& w, int code) {
  switch (w.spec.kind) {
    case Kind::integer:
      return static_cast<float>(w.spec.symmetric ? code - (1 << (w.spec.bits - 1)) : code);
    case Kind::grid:
      return static_cast<float>(std::get<VectorCode>(w.main).codebook.as<const int8_t>()[static_cast<size_t>(code)]);
    case Kind::fp4:
      return kE2m1[static_cast<size_t>(code)];
    default:
      return e4m3_to_float(static_cast<uint8_t>(code));
  }
}

template <typename T>
std::vector<float> floats(std::span<const T> values) {
  return {values.begin(), values.end()};
}
std::vector<float> e4m3_floats(const OwnedTensor& t) {
  std::vector<float> values;
  for (const uint8_t x : bytes_of(t)) values.push_back(e4m3_to_float(x));
  return values;
}

// Affine holds scale, shift and offset of a group, as decode() has them.
struct Affine {
  float scale, shift, offset;
};
Affine affine(ScaleRule rule, const GroupValues& g, int64_t row, int64_t at) {
  const auto i = static_cast<size_t>(at);
  const float r = g.row_scale.empty() ? 1.0f : g.row_scale[static_cast<size_t>(row)];
  return {g.group_scale.empty() ? r : r * stored_multiple(rule, g.group_scale[i]), g.zero.empty() ? 0.0f : g.zero[i],
          g.group_offset.empty() ? 0.0f : r * stored_multiple(rule, g.group_offset[i])};
}

// Returns how far the value lies from level `index` towards its neighbour, in cells, within +-most.
float place_in_cell(const std::vector<float>& level, int index, float value, float most) {
  const auto q = static_cast<size_t>(index);
  const float by = value - level[q];
  const bool up = by > 0;
  if ((up && q + 1 == level.size()) || (!up && q == 0)) return within(by, -most, most);
  const float cell = up ? level[q + 1] - level[q] : level[q] - level[q - 1];
  return cell > 0 && std::isfinite(by) ? within(by / cell, -most, most) : 0.0f;
}

void set_groups(const FormatSpec& spec, const GroupValues& groups, LinearWeight& w) {
  const auto multiple = [&](size_t i) { return stored_multiple(scale_rule(spec), groups.group_scale[i]); };
  const size_t n = groups.group_scale.size();
  if (auto* integer = std::get_if<IntGroup>(&w.main)) {
    for (size_t i = 0; i < n; ++i) {
      if (spec.scale == ScaleKind::u8)
        integer->scale.as<uint8_t>()[i] = static_cast<uint8_t>(multiple(i));
      else
        integer->scale.as<f16>()[i] = to_f16(multiple(i));
    }
    if (spec.scale == ScaleKind::u8)
      std::copy(groups.row_scale.begin(), groups.row_scale.end(), integer->row_scale.as<float>().begin());
    const int64_t each = spec.groups(w.in);
    const float most = static_cast<float>((1 << spec.bits) - 1);
    for (size_t i = 0; i < groups.zero.size(); ++i)
      set_zero(*integer, static_cast<int64_t>(i) / each, static_cast<int64_t>(i) % each,
               static_cast<int>(nearest(within(groups.zero[i], 0, most))));
  } else if (auto* grid = std::get_if<VectorCode>(&w.main)) {
    for (size_t i = 0; i < n; ++i) grid->scale.as<int8_t>()[i] = static_cast<int8_t>(multiple(i));
    std::copy(groups.row_scale.begin(), groups.row_scale.end(), grid->row_scale.as<float>().begin());
  } else {
    auto& block = std::get<FpBlock>(w.main);
    for (size_t i = 0; i < n; ++i) bytes_of(block.scale)[i] = to_e4m3(multiple(i));
    for (size_t i = 0; i < groups.group_offset.size(); ++i)
      bytes_of(block.offset)[i] = to_e4m3(stored_multiple(ScaleRule::e4m3, groups.group_offset[i]));
    std::copy(groups.row_scale.begin(), groups.row_scale.end(), block.row_scale.as<float>().begin());
  }
}

}  // namespace

LevelTable level_table(const LinearWeight& w) {
  const Kind kind = w.spec.kind;
  check(kind == Kind::integer || kind == Kind::grid || kind == Kind::fp4 || kind == Kind::fp8,
        "{} has no table of levels", to_string(w.spec));
  const int codes = 1 << w.spec.bits;
  std::vector<int> order;
  for (int code = 0; code < codes; ++code)
    if (!std::isnan(value_of(w, code))) order.push_back(code);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return value_of(w, a) < value_of(w, b); });
  const bool merge = w.spec.kind == Kind::fp4 || w.spec.kind == Kind::fp8;  // in these formats zero has two codes
  LevelTable table;
  table.index.assign(256, 0);
  for (const int code : order) {
    const float value = value_of(w, code);
    if (!merge || table.level.empty() || table.level.back() != value) {
      table.level.push_back(value + 0.0f);  // avoids negative zero
      table.code.push_back(static_cast<uint8_t>(code));
    }
    table.index[static_cast<size_t>(code)] = static_cast<int>(table.level.size()) - 1;
  }
  return table;
}

ScaleRule scale_rule(const FormatSpec& spec) {
  switch (spec.kind) {
    case Kind::integer:
      return spec.scale == ScaleKind::u8 ? ScaleRule::u8 : ScaleRule::f16;
    case Kind::grid:
      return ScaleRule::i8;
    case Kind::fp4:
      return ScaleRule::e4m3;
    case Kind::fp8:
      return ScaleRule::row;
    default:
      throw Error("{} has no scales of its own", to_string(spec));
  }
}

GroupValues group_values(const LinearWeight& w) {
  GroupValues g;
  if (const auto* integer = std::get_if<IntGroup>(&w.main)) {
    if (w.spec.scale == ScaleKind::u8) {
      g.group_scale = floats(integer->scale.as<const uint8_t>());
      g.row_scale = floats(integer->row_scale.as<const float>());
    } else {
      for (const f16 x : integer->scale.as<const f16>()) g.group_scale.push_back(to_float(x));
    }
    for (int64_t row = 0; !w.spec.symmetric && row < w.out; ++row)
      for (int64_t i = 0; i < w.spec.groups(w.in); ++i)
        g.zero.push_back(static_cast<float>(get_zero(*integer, row, i)));
  } else if (const auto* grid = std::get_if<VectorCode>(&w.main)) {
    g.group_scale = floats(grid->scale.as<const int8_t>());
    g.row_scale = floats(grid->row_scale.as<const float>());
  } else {
    const auto& block = std::get<FpBlock>(w.main);
    if (block.scale) g.group_scale = e4m3_floats(block.scale);
    if (block.offset) g.group_offset = e4m3_floats(block.offset);
    g.row_scale = floats(block.row_scale.as<const float>());
  }
  return g;
}

std::vector<float> start_positions(const LinearWeight& w, const LevelTable& table, const GroupValues& groups,
                                   std::span<const float> source, float most) {
  std::vector<float> positions(static_cast<size_t>(w.out * w.in));
  std::vector<uint8_t> codes(static_cast<size_t>(w.in));
  const int64_t each = w.spec.groups(w.in), size = w.spec.group_size(w.in);
  const ScaleRule rule = scale_rule(w.spec);
  for (int64_t row = 0; row < w.out; ++row) {
    codes_of(w).get_row(row, codes);
    for (int64_t c = 0; c < w.in; ++c) {
      const Affine a = affine(rule, groups, row, row * each + c / size);
      const int index = table.index[codes[static_cast<size_t>(c)]];
      const auto at = static_cast<size_t>(row * w.in + c);
      float place = 0;
      if (!source.empty() && a.scale != 0)
        place = place_in_cell(table.level, index, (source[at] - a.offset) / a.scale + a.shift, most);
      positions[at] = static_cast<float>(index) - a.shift + place;
    }
  }
  return positions;
}

LinearWeight weight_of(const FormatSpec& spec, int64_t out, int64_t in, const LevelTable& table,
                       std::span<const float> positions, const GroupValues& groups) {
  LinearWeight w = allocate_weight(spec, out, in);
  set_groups(spec, groups, w);
  if (auto* grid = std::get_if<VectorCode>(&w.main))
    for (size_t k = 0; k < table.level.size(); ++k)
      grid->codebook.as<int8_t>()[table.code[k]] = static_cast<int8_t>(table.level[k]);
  std::vector<uint8_t> codes(static_cast<size_t>(in));
  const int64_t each = spec.groups(in), size = spec.group_size(in);
  const int levels = static_cast<int>(table.level.size());
  const float most = static_cast<float>((1 << spec.bits) - 1);
  Codes& to = const_cast<Codes&>(codes_of(w));
  for (int64_t row = 0; row < out; ++row) {
    for (int64_t c = 0; c < in; ++c) {
      const auto group = static_cast<size_t>(row * each + c / size);
      const float shift = groups.zero.empty() ? 0.0f : nearest(within(groups.zero[group], 0, most));
      const int q = code_of(positions[static_cast<size_t>(row * in + c)], shift, levels);
      codes[static_cast<size_t>(c)] = table.code[static_cast<size_t>(q)];
    }
    to.set_row(row, codes);
  }
  return w;
}

int64_t different_codes(const LinearWeight& a, const LinearWeight& b) {
  if (a.spec.is_dense() || a.spec.kind == Kind::vq) return 0;
  int64_t different = 0;
  std::vector<uint8_t> ours(static_cast<size_t>(a.in)), theirs(ours);
  for (int64_t row = 0; row < a.out; ++row) {
    codes_of(a).get_row(row, ours), codes_of(b).get_row(row, theirs);
    for (size_t c = 0; c < ours.size(); ++c) different += ours[c] != theirs[c];
  }
  return different;
}

}  // namespace fidelio::train
