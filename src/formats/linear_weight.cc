#include "formats/linear_weight.h"

#include <algorithm>
#include <cmath>

#include "formats/small_float.h"
#include "formats/vector_rows.h"

namespace fidelio {
namespace {

std::span<uint8_t> raw(const OwnedTensor& t) {
  return {reinterpret_cast<uint8_t*>(t.view.data), static_cast<size_t>(t.view.bytes())};
}

int64_t plane_bytes(int64_t columns, int width) { return (columns * width + 7) / 8; }

DType dense_dtype(Kind kind) { return kind == Kind::f32 ? DType::f32 : kind == Kind::f16 ? DType::f16 : DType::bf16; }

// This is the one description of the tensors that a format has, with their shapes. Allocation, storing and loading go
// over it. It calls visit(suffix, dtype, shape, tensor&).
template <typename Visit>
void visit_codes(const Codes& c, std::vector<OwnedTensor>& planes, const Visit& visit) {
  const auto widths = plane_widths(c.bits);
  planes.resize(widths.size());
  for (size_t i = 0; i < widths.size(); ++i)
    visit(fmt::format(".plane{}", i), DType::u8, Shape{c.rows, plane_bytes(c.columns, widths[i])}, planes[i]);
}

template <typename Visit>
void visit_tensors(LinearWeight& w, const Visit& visit) {
  const int64_t out = w.out, in = w.in, groups = w.spec.groups(in);
  if (auto* dense = std::get_if<Dense>(&w.main)) {
    visit(".weight", dense_dtype(w.spec.kind), Shape{out, in}, dense->w);
  } else if (auto* integer = std::get_if<IntGroup>(&w.main)) {
    visit_codes(integer->codes, integer->codes.planes, visit);
    const bool narrow = w.spec.scale == ScaleKind::u8;
    visit(".scale", narrow ? DType::u8 : DType::f16, Shape{out, groups}, integer->scale);
    if (narrow) visit(".row_scale", DType::f32, Shape{out}, integer->row_scale);
    if (!w.spec.symmetric) visit(".zero", DType::u8, Shape{out, plane_bytes(groups, w.spec.bits)}, integer->zero);
  } else if (auto* vector = std::get_if<VectorCode>(&w.main)) {
    visit_codes(vector->codes, vector->codes.planes, visit);
    visit(".codebook", DType::i8, Shape{int64_t{1} << vector->codes.bits, vector->dim}, vector->codebook);
    visit(".scale", DType::i8, Shape{out, groups}, vector->scale);
    visit(".row_scale", DType::f32, Shape{out}, vector->row_scale);
  } else if (auto* vectors = std::get_if<SignedVectors>(&w.main)) {
    visit_vectors(*vectors, visit);
  } else if (auto* super = std::get_if<SuperBlock>(&w.main)) {
    const Shape of_supers{out, w.spec.supers(in)};
    visit_codes(super->codes, super->codes.planes, visit);
    visit(".scale", w.spec.symmetric ? DType::i8 : DType::u8, Shape{out, groups}, super->scale);
    if (!w.spec.symmetric && w.spec.bits > 2) visit(".minimum", DType::u8, Shape{out, groups}, super->minimum);
    visit(".super_scale", DType::f16, of_supers, super->super_scale);
    if (!w.spec.symmetric) visit(".super_minimum", DType::f16, of_supers, super->super_minimum);
  } else {
    auto& block = std::get<FpBlock>(w.main);
    visit_codes(block.codes, block.codes.planes, visit);
    if (w.spec.kind == Kind::fp4) visit(".scale", DType::f8_e4m3, Shape{out, groups}, block.scale);
    if (w.spec.kind == Kind::fp4 && !w.spec.symmetric)
      visit(".offset", DType::f8_e4m3, Shape{out, groups}, block.offset);
    if (w.spec.kind == Kind::mxfp4)
      visit(".scale", DType::u8, Shape{out, groups}, block.scale);
    else
      visit(".row_scale", DType::f32, Shape{out}, block.row_scale);
  }
}

OwnedTensor* shared_book(LinearWeight& w) {
  auto* vectors = std::get_if<SignedVectors>(&w.main);
  return vectors && vectors->shape.shared ? &vectors->codebook : nullptr;
}

// Visits the tensors of visit_tensors and the shared codebook.
template <typename Visit>
void visit_whole(LinearWeight& w, const Visit& visit) {
  visit_tensors(w, visit);
  if (OwnedTensor* book = shared_book(w))
    visit(".codebook", DType::i8, codebook_shape(std::get<SignedVectors>(w.main).shape), *book);
}

// Returns a weight with the right alternative of `main`, whose sizes are set and whose tensors are still empty.
LinearWeight empty_weight(const FormatSpec& spec, int64_t out, int64_t in) {
  check(out > 0 && in > 0, "a linear of shape ({}, {}) cannot be stored: both must be positive", out, in);
  LinearWeight w{.out = out, .in = in, .spec = spec, .main = Dense{}, .bias = {}};
  const Codes codes{.bits = spec.bits, .rows = out, .columns = in, .planes = {}};
  if (spec.kind == Kind::integer) w.main = IntGroup{.codes = codes, .scale = {}, .row_scale = {}, .zero = {}};
  if (spec.kind == Kind::grid)
    w.main = VectorCode{.dim = 1, .codes = codes, .codebook = {}, .scale = {}, .row_scale = {}};
  if (spec.kind == Kind::vq) w.main.emplace<SignedVectors>().shape = vector_shape(spec, out, in);
  if (spec.kind == Kind::fp4 || spec.kind == Kind::mxfp4 || spec.kind == Kind::fp8)
    w.main = FpBlock{.codes = codes, .scale = {}, .offset = {}, .row_scale = {}};
  if (spec.kind == Kind::super_block)
    w.main = SuperBlock{.codes = codes, .scale = {}, .minimum = {}, .super_scale = {}, .super_minimum = {}};
  return w;
}

// Returns field g of b bits from the bit string of a row.
int zero_of(const OwnedTensor& zero, int b, int64_t row, int64_t g) {
  const int64_t stride = zero.view.shape[1], bit = g * b;
  const uint8_t* bytes = raw(zero).data() + row * stride;
  int value = bytes[bit / 8] >> (bit % 8);
  if (bit % 8 + b > 8) value |= bytes[bit / 8 + 1] << (8 - bit % 8);
  return value & ((1 << b) - 1);
}

void decode_main(const LinearWeight& w, const Dense& dense, int64_t row, std::span<float> values) {
  Tensor line = dense.w.view;
  line.data += row * w.in * size_of(line.dtype);
  line.shape = {w.in};
  convert_to_float(line, values);
}

void decode_main(const LinearWeight& w, const IntGroup& m, int64_t row, std::span<float> values) {
  const int64_t g = w.spec.group_size(w.in), groups = w.spec.groups(w.in);
  std::vector<uint8_t> q(static_cast<size_t>(w.in));
  m.codes.get_row(row, q);
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t at = row * groups + i;
    const float scale = w.spec.scale == ScaleKind::u8
                            ? m.row_scale.as<const float>()[row] * static_cast<float>(m.scale.as<const uint8_t>()[at])
                            : to_float(m.scale.as<const f16>()[at]);
    const int below = w.spec.below, bits = w.spec.bits + below;
    const int zero = w.spec.symmetric ? 1 << (bits - 1) : zero_of(m.zero, bits, row, i);
    const float middle = static_cast<float>((1 << below) - 1) / 2;
    for (int64_t c = i * g; c < std::min(w.in, (i + 1) * g); ++c)
      values[c] = scale * (static_cast<float>((q[c] << below) - zero) + middle);
  }
}

void decode_main(const LinearWeight& w, const VectorCode& m, int64_t row, std::span<float> values) {
  const int64_t g = w.spec.group_size(w.in), groups = w.spec.groups(w.in);
  std::vector<uint8_t> q(static_cast<size_t>(m.codes.columns));
  m.codes.get_row(row, q);
  const auto book = m.codebook.as<const int8_t>();
  for (int64_t c = 0; c < w.in; ++c) {
    const float scale =
        m.row_scale.as<const float>()[row] * static_cast<float>(m.scale.as<const int8_t>()[row * groups + c / g]);
    values[c] = scale * static_cast<float>(book[q[c / m.dim] * m.dim + c % m.dim]);
  }
}

void decode_main(const LinearWeight& w, const SuperBlock& m, int64_t row, std::span<float> values) {
  const int64_t g = w.spec.group, groups = w.spec.groups(w.in), supers = w.spec.supers(w.in);
  const int middle = 1 << (w.spec.bits - 1);
  std::vector<uint8_t> q(static_cast<size_t>(w.in));
  m.codes.get_row(row, q);
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t at = row * groups + i, super = row * supers + i * g / w.spec.super;
    const float scale = to_float(m.super_scale.as<const f16>()[super]) * static_cast<float>(m.scale_of(at));
    const float minimum = w.spec.symmetric
                              ? 0.0f
                              : to_float(m.super_minimum.as<const f16>()[super]) * static_cast<float>(m.minimum_of(at));
    for (int64_t c = i * g; c < std::min(w.in, (i + 1) * g); ++c) {
      if (!w.spec.symmetric)
        values[c] = scale * static_cast<float>(q[c]) - minimum;
      else
        values[c] = scale * static_cast<float>(w.spec.has_fixed_table() ? kFixedTable[q[c]] : q[c] - middle);
    }
  }
}

void decode_main(const LinearWeight& w, const FpBlock& m, int64_t row, std::span<float> values) {
  const bool mxfp4 = w.spec.kind == Kind::mxfp4;
  const float row_scale = mxfp4 ? 1 : m.row_scale.as<const float>()[row];
  std::vector<uint8_t> q(static_cast<size_t>(w.in));
  m.codes.get_row(row, q);
  const int64_t g = w.spec.group_size(w.in), groups = w.spec.groups(w.in);
  for (int64_t c = 0; c < w.in; ++c) {
    if (mxfp4) {
      values[c] = mxfp4_to_float(q[c], raw(m.scale)[row * groups + c / g]);
      continue;
    }
    if (w.spec.kind == Kind::fp8) {
      values[c] = row_scale * e4m3_to_float(q[c]);
      continue;
    }
    const int64_t at = row * groups + c / g;
    const float offset = m.offset ? e4m3_to_float(raw(m.offset)[at]) : 0.0f;
    values[c] = row_scale * (e4m3_to_float(raw(m.scale)[at]) * kE2m1[q[c]] + offset);
  }
}

void decode_main(const LinearWeight&, const SignedVectors& m, int64_t row, std::span<float> values) {
  decode_vectors(m, row, values);
}

}  // namespace

std::span<const int> plane_widths(int bits) {
  static constexpr int kTable[7][3] = {{2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {4, 4}};
  static constexpr size_t kCount[7] = {1, 2, 1, 2, 2, 3, 2};
  check(bits >= 2 && bits <= 8, "codes have 2 to 8 bits, not {}", bits);
  return {kTable[bits - 2], kCount[bits - 2]};
}

bool is_view_width(int bits, int high) {
  int sum = 0;
  for (const int width : plane_widths(bits))
    if ((sum += width) == high) return high < bits;
  return false;
}

Codes Codes::allocate(int bits, int64_t rows, int64_t columns) {
  Codes c{.bits = bits, .rows = rows, .columns = columns, .planes = {}};
  visit_codes(c, c.planes, [](const std::string&, DType dtype, const Shape& shape, OwnedTensor& t) {
    t = OwnedTensor::allocate(dtype, shape);
  });
  return c;
}

void Codes::get_row(int64_t row, std::span<uint8_t> codes) const {
  std::fill(codes.begin(), codes.end(), uint8_t{0});
  const auto widths = plane_widths(bits);
  for (size_t p = 0; p < widths.size(); ++p) {
    const int width = widths[p], mask = (1 << width) - 1;
    const uint8_t* bytes = raw(planes[p]).data() + row * plane_bytes(columns, width);
    for (int64_t c = 0; c < columns; ++c)
      codes[c] = static_cast<uint8_t>((codes[c] << width) | ((bytes[c * width / 8] >> (c * width % 8)) & mask));
  }
}

namespace {

// Writes a row of a plane, whose bits are those of the codes from bit `below` on.
template <int kWidth>
void set_plane(const uint8_t* codes, int64_t columns, int below, uint8_t* bytes) {
  constexpr int kEach = 8 / kWidth, kMask = (1 << kWidth) - 1;
  int64_t c = 0;
  for (; c + kEach <= columns; c += kEach) {
    int byte = 0;
    for (int i = 0; i < kEach; ++i) byte |= ((codes[c + i] >> below) & kMask) << (kWidth * i);
    bytes[c / kEach] = static_cast<uint8_t>(byte);
  }
  if (c == columns) return;
  int byte = 0;
  for (int i = 0; c + i < columns; ++i) byte |= ((codes[c + i] >> below) & kMask) << (kWidth * i);
  bytes[c / kEach] = static_cast<uint8_t>(byte);
}

}  // namespace

void Codes::set_row(int64_t row, std::span<const uint8_t> codes) {
  const auto widths = plane_widths(bits);
  int below = bits;  // These bits of the code are in later planes.
  for (size_t p = 0; p < widths.size(); ++p) {
    const int width = widths[p];
    below -= width;
    uint8_t* bytes = raw(planes[p]).data() + row * plane_bytes(columns, width);
    (width == 4 ? set_plane<4> : width == 2 ? set_plane<2> : set_plane<1>)(codes.data(), columns, below, bytes);
  }
}

uint8_t Codes::get(int64_t row, int64_t column) const {
  int code = 0;
  const auto widths = plane_widths(bits);
  for (size_t p = 0; p < widths.size(); ++p) {
    const int width = widths[p];
    const uint8_t byte = raw(planes[p])[row * plane_bytes(columns, width) + column * width / 8];
    code = (code << width) | ((byte >> (column * width % 8)) & ((1 << width) - 1));
  }
  return static_cast<uint8_t>(code);
}

void Codes::set(int64_t row, int64_t column, uint8_t code) {
  const auto widths = plane_widths(bits);
  int below = bits;
  for (size_t p = 0; p < widths.size(); ++p) {
    const int width = widths[p], mask = (1 << width) - 1, shift = static_cast<int>(column * width % 8);
    below -= width;
    uint8_t& byte = raw(planes[p])[row * plane_bytes(columns, width) + column * width / 8];
    byte = static_cast<uint8_t>((byte & ~(mask << shift)) | (((code >> below) & mask) << shift));
  }
}

int get_zero(const IntGroup& w, int64_t row, int64_t g) { return zero_of(w.zero, w.codes.bits, row, g); }

void set_zero(IntGroup& w, int64_t row, int64_t g, int zero) {
  const int b = w.codes.bits;
  const int64_t stride = w.zero.view.shape[1], bit = g * b;
  uint8_t* bytes = raw(w.zero).data() + row * stride + bit / 8;
  const int shift = static_cast<int>(bit % 8), mask = ((1 << b) - 1) << shift, value = zero << shift;
  bytes[0] = static_cast<uint8_t>((bytes[0] & ~mask) | (value & mask));
  if (shift + b > 8) bytes[1] = static_cast<uint8_t>((bytes[1] & ~(mask >> 8)) | ((value & mask) >> 8));
}

int SuperBlock::scale_of(int64_t at) const {
  if (!super_minimum) return scale.as<const int8_t>()[static_cast<size_t>(at)];
  const uint8_t byte = scale.as<const uint8_t>()[static_cast<size_t>(at)];
  return codes.bits == 2 ? byte & 15 : byte;
}
int SuperBlock::minimum_of(int64_t at) const {
  const uint8_t byte = (codes.bits == 2 ? scale : minimum).as<const uint8_t>()[static_cast<size_t>(at)];
  return codes.bits == 2 ? byte >> 4 : byte;
}

void cut_codebook(std::span<const int8_t> whole, int bits, std::span<int8_t> cut) {
  const auto cell = static_cast<int>(whole.size()) >> bits;  // A code of the high bits stands for so many entries.
  for (size_t k = 0; k < cut.size(); ++k) {
    int sum = 0;
    for (int i = 0; i < cell; ++i) sum += whole[k * static_cast<size_t>(cell) + static_cast<size_t>(i)];
    cut[k] = static_cast<int8_t>(std::lround(static_cast<double>(sum) / cell));
  }
}

namespace {

// Copies the high bits into planes of their own, for a cut that ends inside a plane.
Codes high_codes(const Codes& whole, int bits) {
  Codes high = Codes::allocate(bits, whole.rows, whole.columns);
  std::vector<uint8_t> row(static_cast<size_t>(whole.columns));
  for (int64_t r = 0; r < whole.rows; ++r) {
    whole.get_row(r, row);
    for (uint8_t& code : row) code = static_cast<uint8_t>(code >> (whole.bits - bits));
    high.set_row(r, row);
  }
  return high;
}

}  // namespace

LinearWeight high_planes(const LinearWeight& w, int bits) {
  check((w.spec.kind == Kind::integer || w.spec.kind == Kind::grid) && w.spec.below == 0,
        "only integers and grids have a view of their high planes, not {}", to_string(w.spec));
  check(bits >= 2 && bits < w.spec.bits, "{} cannot be cut to its {} high bits: a view has 2 to {}", to_string(w.spec),
        bits, w.spec.bits - 1);
  LinearWeight view = w;  // The tensors are views with shared owners, so no bytes are copied.
  view.spec.bits = bits;
  view.spec.below = w.spec.bits - bits;
  auto* grid = std::get_if<VectorCode>(&view.main);
  Codes& codes = grid ? grid->codes : std::get<IntGroup>(view.main).codes;
  if (is_view_width(w.spec.bits, bits)) {
    codes.bits = bits;
    codes.planes.resize(plane_widths(bits).size());
  } else {
    codes = high_codes(codes, bits);
  }
  if (grid) {
    OwnedTensor cut = OwnedTensor::allocate(DType::i8, {int64_t{1} << bits, 1});
    cut_codebook(grid->codebook.as<const int8_t>(), bits, cut.as<int8_t>());
    grid->codebook = std::move(cut);
  }
  return view;
}

LinearWeight make_dense(OwnedTensor w, OwnedTensor bias) {
  check(w.view.shape.rank == 2, "a linear's weight has shape (out, in), not {}", to_string(w.view.shape));
  const DType t = w.view.dtype;
  check(t == DType::f32 || t == DType::f16 || t == DType::bf16, "a dense weight is F32, F16 or BF16, not {}",
        name_of(t));
  const int64_t out = w.view.shape[0], in = w.view.shape[1];
  check(!bias || (bias.view.dtype == DType::f32 && bias.view.shape == Shape{out}),
        "the bias of a ({}, {}) linear is F32 [{}], not {} {}", out, in, out, name_of(bias.view.dtype),
        to_string(bias.view.shape));
  const Kind kind = t == DType::f32 ? Kind::f32 : t == DType::f16 ? Kind::f16 : Kind::bf16;
  return {out, in, {.kind = kind, .bits = static_cast<int>(8 * size_of(t))}, Dense{std::move(w)}, std::move(bias)};
}

LinearWeight allocate_weight(const FormatSpec& spec, int64_t out, int64_t in) {
  LinearWeight w = empty_weight(spec, out, in);
  visit_whole(w, [](const std::string&, DType dtype, const Shape& shape, OwnedTensor& t) {
    t = OwnedTensor::allocate(dtype, shape);
  });
  return w;
}

int64_t LinearWeight::stored_bytes() const {
  int64_t bytes = 0;
  for (const StoredTensor& t : stored_tensors(*this)) bytes += t.tensor.bytes();
  return bytes;
}

void decode_row(const LinearWeight& w, int64_t row, std::span<float> values) {
  check(static_cast<int64_t>(values.size()) == w.in, "decode_row: {} places for a row of {}", values.size(), w.in);
  std::visit([&](const auto& main) { decode_main(w, main, row, values); }, w.main);
}

std::vector<float> decode(const LinearWeight& w) {
  std::vector<float> values(static_cast<size_t>(w.out * w.in));
  if (const auto* vectors = std::get_if<SignedVectors>(&w.main)) {
    const VectorRows rows(*vectors);
    for (int64_t row = 0; row < w.out; ++row) rows.decode(row, std::span(values).subspan(row * w.in, w.in));
    return values;
  }
  for (int64_t row = 0; row < w.out; ++row) decode_row(w, row, std::span(values).subspan(row * w.in, w.in));
  return values;
}

std::vector<StoredTensor> stored_tensors(const LinearWeight& w) {
  check(w.spec.below == 0, "{} are a way of reading a weight, not a format of a file: store the whole weight",
        to_string(w.spec));
  std::vector<StoredTensor> tensors;
  LinearWeight views = w;  // The tensors are views with shared owners, so no bytes are copied.
  visit_tensors(views, [&](const std::string& suffix, DType, const Shape&, const OwnedTensor& t) {
    tensors.push_back({suffix, t.view});
  });
  if (w.bias) tensors.push_back({".bias", w.bias.view});
  return tensors;
}

const OwnedTensor* shared_codebook(const LinearWeight& w) {
  const auto* vectors = std::get_if<SignedVectors>(&w.main);
  return vectors && vectors->shape.shared ? &vectors->codebook : nullptr;
}

std::vector<StoredTensor> whole_tensors(const LinearWeight& w) {
  std::vector<StoredTensor> tensors = stored_tensors(w);
  if (const OwnedTensor* book = shared_codebook(w)) tensors.push_back({".codebook", book->view});
  return tensors;
}

void check_codes(const LinearWeight& w, const std::string& name) {
  if (const auto* vectors = std::get_if<SignedVectors>(&w.main))
    check_vectors(*vectors, name.empty() ? to_string(w.spec) : fmt::format("{} ({})", name, to_string(w.spec)));
}

LinearWeight take_rows(const LinearWeight& w, std::span<const int32_t> rows) {
  check(!std::holds_alternative<SignedVectors>(w.main), "vector codes have no rows of their own that could be taken");
  const std::vector<StoredTensor> whole = whole_tensors(w);
  return load_weight(w.spec, std::ssize(rows), w.in, [&](const std::string& suffix, DType dtype, const Shape& shape) {
    const auto stored = std::ranges::find(whole, suffix, &StoredTensor::suffix);
    if (stored == whole.end()) return OwnedTensor();
    const Tensor& from = stored->tensor;
    OwnedTensor to = OwnedTensor::allocate(dtype, shape);
    if (suffix == ".codebook") {  // The codebook belongs to all rows.
      std::copy_n(from.data, from.bytes(), to.view.data);
      return to;
    }
    const int64_t bytes = from.bytes() / w.out;  // These are the bytes of a row.
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(from.data + rows[i] * bytes, bytes, to.view.data + static_cast<int64_t>(i) * bytes);
    return to;
  });
}

LinearWeight load_weight(
    const FormatSpec& spec, int64_t out, int64_t in,
    const std::function<OwnedTensor(const std::string& suffix, DType dtype, const Shape& shape)>& find,
    const std::string& name) {
  LinearWeight w = empty_weight(spec, out, in);
  visit_whole(w, [&](const std::string& suffix, DType dtype, const Shape& shape, OwnedTensor& t) {
    t = find(suffix, dtype, shape);
    check(static_cast<bool>(t), "a {} weight of shape ({}, {}) needs a tensor {} of {} {}", to_string(spec), out, in,
          suffix, name_of(dtype), to_string(shape));
  });
  w.bias = find(".bias", DType::f32, Shape{out});
  check_codes(w, name);
  return w;
}

}  // namespace fidelio
