#include "io/quantised/packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "core/error.h"

namespace fidelio::quantised {
namespace {

// Returns field i of b bits in a string of words that stand `stride` apart. Fields may straddle words.
uint32_t field(const int32_t* words, int64_t stride, int64_t i, int b) {
  const int64_t bit = i * b, word = bit / 32;
  const int shift = static_cast<int>(bit % 32);
  uint64_t value = static_cast<uint32_t>(words[word * stride]) >> shift;
  if (shift + b > 32) value |= uint64_t{static_cast<uint32_t>(words[(word + 1) * stride])} << (32 - shift);
  return static_cast<uint32_t>(value) & ((1u << b) - 1);
}

// Returns a field of gptq_p, in which every 32 codes begin with the words of the plane of the low bits.
uint32_t planar_field(const int32_t* words, int64_t stride, int64_t i, int b) {
  constexpr std::array<std::array<int, 3>, 9> kWidths = {{{}, {}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}}};
  const int32_t* block = words + i / 32 * b * stride;
  uint32_t value = 0;
  int low = 0;
  for (const int width : kWidths[static_cast<size_t>(b)]) {
    if (width == 0) break;
    value |= field(block + low * stride, stride, i % 32, width) << low;  // A plane of w bits fills w words.
    low += width;
  }
  return value;
}

int64_t words_for(int64_t fields, int bits) { return (fields * bits + 31) / 32; }

std::vector<float> floats(const OwnedTensor& t) {
  std::vector<float> values(static_cast<size_t>(t.view.elements()));
  convert_to_float(t.view, values);
  return values;
}

OwnedTensor words_of(const TensorFiles& files, const std::string& name, int64_t rows, int64_t columns) {
  return files.get(name, DType::i32, {rows, columns});
}

void set_groups(PackedLinear& p, const std::string& module, int64_t groups) {
  p.groups = groups;
  check(groups >= 1 && groups <= p.in, "{}: {} groups of {} columns", module, groups, p.in);
}

// Reads a g_idx and keeps it where its groups are not simply runs of columns, of which the last may be shorter. Returns
// whether there is one.
bool read_group_index(PackedLinear& p, const TensorFiles& files, const std::string& name) {
  if (!files.contains(name)) return false;
  const OwnedTensor index = files.get(name, DType::i32, {p.in});
  const auto groups = index.as<const int32_t>();
  p.group_size = std::find_if(groups.begin(), groups.end(), [&](int32_t g) { return g != groups[0]; }) - groups.begin();
  bool plain = true;
  for (int64_t k = 0; k < p.in; ++k) {
    const int32_t g = groups[static_cast<size_t>(k)];
    if (g == -1) return false;  // This is compressed-tensors' mark of an unused index.
    check(g >= 0 && g < p.groups, "{}: column {} is in group {}, of which there are {}", name, k, g, p.groups);
    plain = plain && g == k / p.group_size;
  }
  if (!plain) p.group_index.assign(groups.begin(), groups.end());
  return true;
}

// Finds which columns form a group, by the sizes that the configuration names. 96 columns in 2 groups, for example, are
// 64 and 32 if the size is 64, and 48 each if no size is named.
void set_group_size(PackedLinear& p, const std::string& module, std::span<const int> sizes) {
  std::set<int64_t> fitting;
  for (const int64_t size : sizes)
    if (size > 0 && (p.in + size - 1) / size == p.groups) fitting.insert(std::min(size, p.in));
  if (fitting.empty() && p.in % p.groups == 0) fitting.insert(p.in / p.groups);
  check(fitting.size() == 1, "{}: {} columns are in {} groups, and quantization_config has {} sizes for that", module,
        p.in, p.groups, fitting.empty() ? "no" : "several");
  p.group_size = *fitting.begin();
}

// This is the layout of compressed-tensors.
class Compressed : public PackedLinear {
 public:
  Compressed(const TensorFiles& files, const Place& place, std::span<const int> widths, std::span<const int> sizes)
      : first_(place.first_row) {
    out = place.out, in = place.in;
    const std::string& m = place.module;
    if (files.contains(m + ".weight_packed")) {
      packed_ = files.get(m + ".weight_packed");
      for (const int b : widths)
        if (packed_.view.shape == Shape{place.module_rows, words_for(in, b)}) bits = b;
      check(bits != 0 && packed_.view.dtype == DType::i32,
            "{}.weight_packed is {} {}, expected I32 rows of {} codes of {} bits", m, name_of(packed_.view.dtype),
            to_string(packed_.view.shape), in, fmt::join(widths, " or "));
    } else {
      bytes_ = files.get(m + ".weight", DType::i8, {place.module_rows, in});
      bits = 8;
    }
    read_scales(files, place);
    if (!read_group_index(*this, files, m + ".weight_g_idx")) set_group_size(*this, m, sizes);
    read_zeros(files, place);
  }

  void codes(int64_t row, std::span<uint8_t> q) const override {
    if (packed_) {
      const int64_t words = packed_.view.shape[1];
      const int32_t* line = packed_.as<const int32_t>().data() + (first_ + row) * words;
      for (int64_t c = 0; c < in; ++c) q[static_cast<size_t>(c)] = static_cast<uint8_t>(field(line, 1, c, bits));
    } else {  // Signed bytes from -128 become codes from 0.
      const int8_t* line = bytes_.as<const int8_t>().data() + (first_ + row) * in;
      for (int64_t c = 0; c < in; ++c) q[static_cast<size_t>(c)] = static_cast<uint8_t>(line[c] + 128);
    }
  }
  float scale(int64_t row, int64_t group) const override {
    return scales_[static_cast<size_t>(scales_.size() == 1 ? 0 : (first_ + row) * groups + group)];
  }
  int zero(int64_t row, int64_t group) const override {
    const int middle = 1 << (bits - 1);
    if (!zeros_) return middle;
    if (zeros_.view.dtype == DType::i32)
      return static_cast<int>(field(zeros_.as<const int32_t>().data() + group, groups, first_ + row, bits));
    const auto bytes = zeros_.as<const int8_t>();
    return middle + bytes[bytes.size() == 1 ? 0 : static_cast<size_t>((first_ + row) * groups + group)];
  }

 private:
  void read_scales(const TensorFiles& files, const Place& place) {
    const OwnedTensor scale = files.get(place.module + ".weight_scale");
    const Shape& s = scale.view.shape;
    const bool one = scale.view.elements() == 1, rows = s.rank >= 1 && s.rank <= 2 && s[0] == place.module_rows;
    check(one || rows, "{}.weight_scale has shape {}, expected ({}, groups)", place.module, to_string(s),
          place.module_rows);
    set_groups(*this, place.module, one || s.rank == 1 ? 1 : s[1]);
    scales_ = floats(scale);
  }
  void read_zeros(const TensorFiles& files, const Place& place) {
    const std::string name = place.module + ".weight_zero_point";
    if (!files.contains(name)) return;
    zeros_ = files.get(name);
    const int64_t elements = zeros_.view.elements();
    const bool packed =
        zeros_.view.dtype == DType::i32 && zeros_.view.shape == Shape{words_for(place.module_rows, bits), groups};
    const bool plain = zeros_.view.dtype == DType::i8 && (elements == 1 || elements == place.module_rows * groups);
    check(packed || plain, "{} is {} {}, expected packed I32 or I8 zero points of {} x {} groups", name,
          name_of(zeros_.view.dtype), to_string(zeros_.view.shape), place.module_rows, groups);
  }
  int64_t first_;
  OwnedTensor packed_, bytes_, zeros_;
  std::vector<float> scales_;
};

class Gptq : public PackedLinear {
 public:
  Gptq(const TensorFiles& files, const Place& place, std::span<const int> sizes, bool zeros_minus_one, bool planar)
      : first_(place.first_row), columns_(place.module_rows), add_(zeros_minus_one ? 1 : 0), planar_(planar) {
    out = place.out, in = place.in;
    const std::string& m = place.module;
    codes_ = files.get(m + ".qweight");
    const Shape& s = codes_.view.shape;
    bits = s.rank == 2 && in > 0 ? static_cast<int>(std::min<int64_t>(s[0] * 32 / in, 64)) : 0;
    check(codes_.view.dtype == DType::i32 && bits >= 2 && bits <= 8 && s == Shape{in * bits / 32, columns_} &&
              in % 32 == 0 && columns_ * bits % 32 == 0,
          "{}.qweight is {} {}, expected I32 ({} b / 32, {}) with b from 2 to 8 bits", m, name_of(codes_.view.dtype),
          to_string(s), in, columns_);
    const OwnedTensor scale = files.get(m + ".scales");
    check(scale.view.shape.rank == 2 && scale.view.shape[1] == columns_,
          "{}.scales has shape {}, expected (groups, {})", m, to_string(scale.view.shape), columns_);
    set_groups(*this, m, scale.view.shape[0]);
    scales_ = floats(scale);
    zeros_ = words_of(files, m + ".qzeros", groups, columns_ * bits / 32);
    if (!read_group_index(*this, files, m + ".g_idx")) set_group_size(*this, m, sizes);
  }

  void codes(int64_t row, std::span<uint8_t> q) const override {
    const int32_t* column = codes_.as<const int32_t>().data() + first_ + row;
    for (int64_t k = 0; k < in; ++k)
      q[static_cast<size_t>(k)] =
          static_cast<uint8_t>(planar_ ? planar_field(column, columns_, k, bits) : field(column, columns_, k, bits));
  }
  float scale(int64_t row, int64_t group) const override {
    return scales_[static_cast<size_t>(group * columns_ + first_ + row)];
  }
  int zero(int64_t row, int64_t group) const override {
    const int32_t* words = zeros_.as<const int32_t>().data() + group * zeros_.view.shape[1];
    const int64_t n = first_ + row;
    return static_cast<int>(planar_ ? planar_field(words, 1, n, bits) : field(words, 1, n, bits)) + add_;
  }

 private:
  int64_t first_, columns_;
  int add_;
  bool planar_;
  OwnedTensor codes_, zeros_;
  std::vector<float> scales_;
};

class Awq : public PackedLinear {
 public:
  Awq(const TensorFiles& files, const Place& place, std::span<const int> sizes)
      : first_(place.first_row), columns_(place.module_rows) {
    out = place.out, in = place.in, bits = 4;
    const std::string& m = place.module;
    check(columns_ % 8 == 0, "{}: {} outputs are no whole words of eight", m, columns_);
    codes_ = words_of(files, m + ".qweight", in, columns_ / 8);
    const OwnedTensor scale = files.get(m + ".scales");
    check(scale.view.shape.rank == 2 && scale.view.shape[1] == columns_,
          "{}.scales has shape {}, expected (groups, {})", m, to_string(scale.view.shape), columns_);
    set_groups(*this, m, scale.view.shape[0]);
    set_group_size(*this, m, sizes);
    scales_ = floats(scale);
    zeros_ = words_of(files, m + ".qzeros", groups, columns_ / 8);
  }

  void codes(int64_t row, std::span<uint8_t> q) const override {
    const auto words = codes_.as<const int32_t>();
    for (int64_t k = 0; k < in; ++k) q[static_cast<size_t>(k)] = static_cast<uint8_t>(nibble(words, k, first_ + row));
  }
  float scale(int64_t row, int64_t group) const override {
    return scales_[static_cast<size_t>(group * columns_ + first_ + row)];
  }
  int zero(int64_t row, int64_t group) const override {
    return nibble(zeros_.as<const int32_t>(), group, first_ + row);
  }

 private:
  // Output 8 j + i of a line stands in word j, at the nibble where the order 0 2 4 6 1 3 5 7 has i.
  int nibble(std::span<const int32_t> words, int64_t line, int64_t n) const {
    const int64_t i = n % 8, place = i % 2 == 0 ? i / 2 : 4 + i / 2;
    return static_cast<int>(static_cast<uint32_t>(words[static_cast<size_t>(line * (columns_ / 8) + n / 8)]) >>
                            (4 * place)) &
           15;
  }
  int64_t first_, columns_;
  OwnedTensor codes_, zeros_;
  std::vector<float> scales_;
};

bool is_half(float x) { return std::isfinite(x) && to_float(to_f16(x)) == x; }

}  // namespace

std::unique_ptr<PackedLinear> open_compressed(const TensorFiles& files, const Place& place, std::span<const int> widths,
                                              std::span<const int> group_sizes) {
  return std::make_unique<Compressed>(files, place, widths, group_sizes);
}
std::unique_ptr<PackedLinear> open_gptq(const TensorFiles& files, const Place& place, std::span<const int> group_sizes,
                                        bool zeros_minus_one, bool planar) {
  return std::make_unique<Gptq>(files, place, group_sizes, zeros_minus_one, planar);
}
std::unique_ptr<PackedLinear> open_awq(const TensorFiles& files, const Place& place, std::span<const int> group_sizes) {
  return std::make_unique<Awq>(files, place, group_sizes);
}

std::vector<float> finite_numbers(const TensorFiles& files, const std::string& name) {
  std::vector<float> values = floats(files.get(name));
  for (float value : values)
    check(std::isfinite(value), "{} holds {}, expected finite numbers: the file is damaged", name, value);
  return values;
}

FormatSpec format_of(const PackedLinear& p, std::string* why) {
  FormatSpec spec{.kind = Kind::integer, .bits = p.bits, .group = p.groups == 1 ? 0 : static_cast<int>(p.group_size)};
  const bool sized = spec.group == 0 || spec.group == 16 || spec.group == 32 || spec.group == 64 || spec.group == 128;
  why->clear();
  if (!p.group_index.empty())
    *why = "their groups are not runs of columns (act-order)";
  else if (!sized || spec.groups(p.in) != p.groups)
    *why = fmt::format("their groups of {} columns are none of 16, 32, 64, 128 or the row", p.group_size);
  for (int64_t r = 0; r < p.out && why->empty(); ++r)
    for (int64_t g = 0; g < p.groups && why->empty(); ++g) {
      const int zero = p.zero(r, g);
      if (!is_half(p.scale(r, g))) *why = "their scales are not FP16 numbers";
      if (zero < 0 || zero >= 1 << p.bits) *why = "their zero points are beyond the codes";
      if (zero != 1 << (p.bits - 1)) spec.symmetric = false;
    }
  return why->empty() ? spec : FormatSpec{.kind = Kind::f32, .bits = 32};
}

LinearWeight read(const PackedLinear& p, const FormatSpec& spec) {
  LinearWeight w = allocate_weight(spec, p.out, p.in);
  std::vector<uint8_t> q(static_cast<size_t>(p.in));
  for (int64_t r = 0; r < p.out; ++r) {
    p.codes(r, q);
    if (auto* m = std::get_if<IntGroup>(&w.main)) {
      m->codes.set_row(r, q);
      for (int64_t g = 0; g < p.groups; ++g) {
        m->scale.as<f16>()[static_cast<size_t>(r * p.groups + g)] = to_f16(p.scale(r, g));
        if (!spec.symmetric) set_zero(*m, r, g, p.zero(r, g));
      }
      continue;
    }
    const auto values = std::get<Dense>(w.main).w.as<float>().subspan(static_cast<size_t>(r * p.in));
    for (int64_t c = 0; c < p.in; ++c) {
      const int64_t g = p.group_of(c);
      values[static_cast<size_t>(c)] = p.scale(r, g) * static_cast<float>(q[static_cast<size_t>(c)] - p.zero(r, g));
    }
  }
  return w;
}

}  // namespace fidelio::quantised
