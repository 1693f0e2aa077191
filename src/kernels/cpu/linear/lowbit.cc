// This file holds the low-bit rows of the kernel table, their packing, and the bridge from linear.h to the plain
// structs of lowbit.h.
#include "kernels/cpu/linear/lowbit.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "formats/small_float.h"
#include "kernels/cpu/linear/lowbit_linear.h"
#include "kernels/cpu/linear/lowbit_split.h"

namespace fidelio::cpu {
namespace {

using lowbit::kBlock;
using lowbit::kSpan;
using lowbit::Layout;

// Returns the offset at which the entries of a grid's view begin.
constexpr int view_table(int bits) { return 64 + (1 << bits); }
constexpr int kLayout = 100;  // every row of this file reads the same packing
// At most so many blocks and bytes of a weight with a split plane are reassembled at once; a grid's tables precede
// them.
constexpr int64_t kMergedBlocks = 2, kMergedBytes = int64_t{1} << 20;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int coding_of(const FormatSpec& spec) {
  if (spec.kind == Kind::fp4) return lowbit::kFp4;
  return spec.kind == Kind::grid || spec.kind == Kind::mxfp4 ? spec.bits + 5 : spec.bits - 2;
}

Layout layout_of(const FormatSpec& spec, int64_t out, int64_t in) {
  Layout l{};
  const bool fp4 = spec.kind == Kind::fp4, mxfp4 = spec.kind == Kind::mxfp4;
  l.coding = coding_of(spec);
  l.code_bits = spec.bits;
  l.scale = fp4                           ? lowbit::Scale::e4m3
            : mxfp4                       ? lowbit::Scale::e8m0
            : spec.kind == Kind::grid     ? lowbit::Scale::i8
            : spec.scale == ScaleKind::u8 ? lowbit::Scale::u8
                                          : lowbit::Scale::f16;
  l.has_zero = spec.kind != Kind::grid && !spec.symmetric;
  l.out = out, l.in = in;
  l.blocks = (out + kBlock - 1) / kBlock;
  l.spans = (in + kSpan - 1) / kSpan;
  l.groups = fp4 ? 2 * l.spans : spec.groups(in);  // the last span has two halves, wherever the row ends
  l.group_spans = spec.group == 0 ? l.spans : fp4 ? 1 : spec.group / kSpan;
  l.activation_group_spans = activation_group(spec) / kSpan;
  l.activation_groups = (l.spans + l.activation_group_spans - 1) / l.activation_group_spans;
  l.front = spec.kind == Kind::grid ? 128 : fp4 || mxfp4 ? 64 : 0;
  l.scale_offset = l.scale == lowbit::Scale::f16 ? 0 : kBlock * 4;
  l.zero_offset = l.scale_offset + l.groups * kBlock * (l.scale == lowbit::Scale::f16 ? 2 : 1);
  const int64_t zero_bytes = !l.has_zero ? 0 : fp4 ? kBlock : 2 * spec.bits;  // bytes of a group
  place_planes(l, spec.bits, l.zero_offset + l.groups * zero_bytes);
  return l;
}

// Returns the layout of the same packed bytes read as their `bits` high bits; a plane ends there.
Layout as_view(Layout l, int bits, const lowbit::PlaneList& planes) {
  for (size_t i = 0; i < plane_widths(bits).size(); ++i) l.plane_offset[i] = planes.offset[i];
  if (lowbit::is_grid(l.coding)) {
    l.coding = coding_of({.kind = Kind::grid, .bits = bits});
    l.code_bits = bits;
    l.table = view_table(bits);
  } else {
    l.coding = lowbit::kFirstView + bits - 2;
  }
  return l;
}

void pack_zeros(const IntGroup& w, const Layout& l, int64_t block, uint8_t* base) {
  const int b = w.codes.bits;
  for (int64_t r = 0; r < kBlock && block * kBlock + r < l.out; ++r)
    for (int64_t g = 0; g < l.groups; ++g) {
      const int64_t bit = r * b;
      const int zero = get_zero(w, block * kBlock + r, g) << (bit % 8);
      uint8_t* at = base + l.zero_offset + g * 2 * b + bit / 8;
      at[0] |= static_cast<uint8_t>(zero);
      if (bit % 8 + b > 8) at[1] |= static_cast<uint8_t>(zero >> 8);
    }
}

// A format without row scales has ones.
void pack_row_scales(const OwnedTensor& row_scale, const Layout& l, int64_t block, uint8_t* base) {
  const int64_t rows = std::min<int64_t>(kBlock, l.out - block * kBlock);
  if (!row_scale) return void(std::fill_n(reinterpret_cast<float*>(base), rows, 1.0f));
  std::memcpy(base, row_scale.as<const float>().data() + block * kBlock, static_cast<size_t>(rows) * 4);
}

void pack_tables(std::span<const int8_t> book, int bits, uint8_t* front) {
  const auto put = [](std::span<const int8_t> entries, uint8_t* to) {
    for (size_t i = 0; i < entries.size(); ++i) to[i] = static_cast<uint8_t>(entries[i] + 128);
  };
  put(book, front);
  for (int view = 2; view < bits; ++view) {
    std::vector<int8_t> cut(size_t{1} << view);
    cut_codebook(book, view, cut);
    put(cut, front + view_table(view));
  }
}

Buffer pack(const LinearWeight& w) {
  const Layout l = layout_of(w.spec, w.out, w.in);
  Buffer packed(static_cast<size_t>(l.bytes()));
  auto* bytes = packed.as<uint8_t>();
  const auto* integer = std::get_if<IntGroup>(&w.main);
  const auto* grid = std::get_if<VectorCode>(&w.main);
  const auto* fp4 = std::get_if<FpBlock>(&w.main);
  check(integer || (grid && grid->dim == 1) || (fp4 && w.spec.kind != Kind::fp8),
        "a {} weight is neither integers nor a grid", to_string(w.spec));
  const Codes& codes = integer ? integer->codes : grid ? grid->codes : fp4->codes;
  const Tensor& scale = (integer ? integer->scale : grid ? grid->scale : fp4->scale).view;
  const OwnedTensor& row_scale = integer ? integer->row_scale : grid ? grid->row_scale : fp4->row_scale;
  if (grid) pack_tables(grid->codebook.as<const int8_t>(), codes.bits, bytes);
  for (int i = 0; fp4 && i < 16; ++i) bytes[i] = static_cast<uint8_t>(2 * kE2m1[i] + 128);
  for (int64_t block = 0; block < l.blocks; ++block) {
    uint8_t* base = bytes + l.front + block * l.block_bytes;
    pack_codes(codes, l, block, base);
    pack_groups(scale, l, block, base + l.scale_offset);
    if (l.scale != lowbit::Scale::f16) pack_row_scales(row_scale, l, block, base);
    if (l.has_zero && integer) pack_zeros(*integer, l, block, base);
    if (l.has_zero && fp4) pack_groups(fp4->offset.view, l, block, base + l.zero_offset);
  }
  return packed;
}

float scale_at(const Layout& l, const uint8_t* base, int64_t group, int r) {
  const uint8_t* p = base + l.scale_offset;
  const int64_t i = group * kBlock + r;
  if (l.scale == lowbit::Scale::f16) return to_float(reinterpret_cast<const f16*>(p)[i]);
  if (l.scale == lowbit::Scale::e8m0) return e8m0_to_float(p[i]);
  const float row_scale = reinterpret_cast<const float*>(base)[r];
  return row_scale * static_cast<float>(l.scale == lowbit::Scale::u8 ? p[i] : static_cast<int8_t>(p[i]));
}

int zero_at(const Layout& l, const uint8_t* base, int64_t group, int r) {
  const int b = l.code_bits;
  if (!l.has_zero) return lowbit::is_grid(l.coding) ? 128 : 1 << (b - 1);
  const uint8_t* p = base + l.zero_offset + group * 2 * b + r * b / 8;
  return ((p[0] | p[1] << 8) >> (r * b % 8)) & ((1 << b) - 1);  // p[1] can be read, since the codes follow the zeros
}

// Decodes the values of 32 columns from their codes, with the same operations in the same order as formats'
// decode_row().
void decode_span(const Layout& l, const uint8_t* packed, const uint8_t* base, int64_t s, int r, const uint8_t* code,
                 int64_t columns, float* values) {
  const int64_t group = s / l.group_spans;
  if (l.coding == lowbit::kFp4) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = (2 * s + c / 16) * kBlock + r;
      const float offset = l.has_zero ? e4m3_to_float(base[l.zero_offset + at]) : 0.0f;
      values[c] = reinterpret_cast<const float*>(base)[r] *
                  (e4m3_to_float(base[l.scale_offset + at]) * kE2m1[code[c]] + offset);
    }
    return;
  }
  const float scale = scale_at(l, base, group, r);
  if (l.scale == lowbit::Scale::e8m0) {
    for (int64_t c = 0; c < columns; ++c) values[c] = scale * kE2m1[code[c]];
    return;
  }
  const int zero = zero_at(l, base, group, r), below = l.code_bits - lowbit::bits_of(l.coding);
  const float middle = static_cast<float>((1 << below) - 1) / 2;
  for (int64_t c = 0; c < columns; ++c) {
    const int value = (l.front != 0 ? packed[l.table + code[c]] : code[c] << below) - zero;
    values[c] = scale * (static_cast<float>(value) + middle);
  }
}

// Decodes a row's values exactly as formats' decode_row() gives them; `planes` are those of the layout's coding.
void decode_layout_row(const Linear& w, const Layout& l, const lowbit::PlaneList& planes, int64_t row, float* values) {
  const auto* packed = w.packed.as<const uint8_t>();
  const uint8_t* base = packed + l.front + row / kBlock * l.block_bytes;
  const int r = static_cast<int>(row % kBlock);
  std::vector<uint8_t> codes(static_cast<size_t>(l.in));
  read_codes(planes, base, r, codes);
  for (int64_t s = 0; s < l.spans; ++s)
    decode_span(l, packed, base, s, r, codes.data() + s * kSpan, std::min<int64_t>(kSpan, l.in - s * kSpan),
                values + s * kSpan);
}

// The parameter kBits is the width of a view, or 0 for the whole weight.
template <int kBits>
Layout layout_of(const Linear& w) {
  const Layout whole = layout_of(w.spec, w.out, w.in);
  return kBits == 0 ? whole : as_view(whole, kBits, lowbit::planes_of(whole, w.cut));
}

template <int kBits>
void decode_row(const Linear& w, int64_t row, float* values) {
  lowbit::PlaneList planes = lowbit::planes_of(layout_of<0>(w), w.cut);
  if (kBits > 0) planes.count = static_cast<int>(plane_widths(kBits).size());
  decode_layout_row(w, layout_of<kBits>(w), planes, row, values);
}

const lowbit::Kernels& kernels_of(Isa isa) {
  return isa >= Isa::avx512 ? lowbit::kAvx512 : isa == Isa::avx2 ? lowbit::kAvx2 : lowbit::kPortable;
}

lowbit::Job job_of(const Linear& w, const Layout& layout, const Prepared& x) {
  return {.layout = layout,
          .packed = w.packed.as<const uint8_t>(),
          .bias = w.bias.as<const float>(),
          .rows = x.rows,
          .planes = static_cast<const int8_t*>(x.plane0),
          .scale = x.scale,
          .sum = x.sum,
          .half = x.half,
          .values = x.values,
          .first = 0,
          .last = 0,
          .y = nullptr,
          .y_stride = 0,
          .add = false};
}

template <Isa kIsa, Activations kMode>
void run(const lowbit::Job& job, Form form) {
  const lowbit::Kernels& kernels = kernels_of(kIsa);
  const lowbit::IntegerProducts& integer = kIsa == Isa::amx    ? lowbit::kAmx
                                           : form == Form::i16 ? lowbit::kAvx2Words
                                                               : kernels.integer;
  const auto& row = kMode == Activations::f32 ? kernels.f32 : kMode == Activations::a16 ? integer.a16 : integer.a8;
  row[job.layout.coding](job);
}

template <Isa kIsa, Activations kMode, int kBits>
void multiply(const Linear& w, const Prepared& x, int64_t first, int64_t last, float* y, int64_t y_stride, bool add) {
  lowbit::Job job = job_of(w, layout_of<kBits>(w), x);
  job.first = first, job.last = last, job.y = y, job.y_stride = y_stride, job.add = add;
  run<kIsa, kMode>(job, x.form);
}

// Returns the calling thread's own buffer, made when the thread first needs it.
uint8_t* merged_blocks() {
  static thread_local Buffer blocks(128 + kMergedBytes);
  return blocks.as<uint8_t>();
}

// Multiplies by the whole of a weight with a split plane. The kernels see a few reassembled blocks at a time, as if
// those were a weight of their own.
template <Isa kIsa, Activations kMode>
void multiply_split(const Linear& w, const Prepared& x, int64_t first, int64_t last, float* y, int64_t y_stride,
                    bool add) {
  uint8_t* const merged = merged_blocks();
  const Layout whole = layout_of<0>(w);
  lowbit::Job job = job_of(w, whole, x);
  const uint8_t* const packed = std::exchange(job.packed, merged);
  const float* const bias = job.bias;
  job.y_stride = y_stride, job.add = add;
  std::memcpy(merged, packed, static_cast<size_t>(whole.front));
  for (int64_t block = first; block < last; block += kMergedBlocks) {
    job.last = std::min(kMergedBlocks, last - block);
    for (int64_t i = 0; i < job.last; ++i)
      lowbit::merge_block(whole, w.cut, kernels_of(kIsa).merge, packed + whole.front + (block + i) * whole.block_bytes,
                          merged + whole.front + i * whole.block_bytes);
    job.layout.out = whole.out - block * kBlock;
    job.bias = bias ? bias + block * kBlock : nullptr;
    job.y = y + block * kBlock;
    run<kIsa, kMode>(job, x.form);
  }
}

template <int kBits>
bool accepts(const FormatSpec& spec, int64_t, int64_t) {
  if (spec.below != 0) return false;  // a view without its weight: kernels read views in the weight's own packing
  if (spec.kind == Kind::fp4 || spec.kind == Kind::mxfp4) return kBits == 0;
  return spec.group % kSpan == 0 && kBits < spec.bits;
}

constexpr const char* kNames[3][4] = {
    {"lowbit f32 portable", "lowbit f32 avx2", "lowbit f32 avx512", "lowbit f32 avx512"},
    {"lowbit a16 portable", "lowbit a16 avx2", "lowbit a16 avx512", "lowbit a16 amx"},
    {"lowbit a8 portable", "lowbit a8 avx2", "lowbit a8 avx512", "lowbit a8 amx"}};

constexpr Form form_of(Isa isa, Activations mode, Kind kind) {
  if (mode == Activations::f32) return Form::f32;
  if (mode != Activations::a16) return Form::i8;
  return isa == Isa::avx2 && kind != Kind::fp4 ? Form::i16 : Form::i8x2;
}

template <Isa kIsa, Activations kMode, int kBits = 0>
LinearKernel row_of(Kind kind) {
  return {.name = kNames[static_cast<int>(kMode)][static_cast<int>(kIsa)],
          .kind = kind,
          .bits = kBits,
          .mode = kMode,
          .isa = kIsa,
          .form = form_of(kIsa, kMode, kind),
          .block = kBlock,
          .accepts = accepts<kBits>,
          .pack = pack,
          .layout = kLayout,
          .multiply = multiply<kIsa, kMode, kBits>,
          .decode_row = decode_row<kBits>};
}

template <Isa kIsa>
std::span<const LinearKernel> rows_of() {
  static const std::array<LinearKernel, 12> rows = {
      row_of<kIsa, Activations::f32>(Kind::mxfp4),   row_of<kIsa, Activations::a16>(Kind::mxfp4),
      row_of<kIsa, Activations::a8>(Kind::mxfp4),    row_of<kIsa, Activations::f32>(Kind::fp4),
      row_of<kIsa, Activations::a16>(Kind::fp4),     row_of<kIsa, Activations::a8>(Kind::fp4),
      row_of<kIsa, Activations::f32>(Kind::integer), row_of<kIsa, Activations::a16>(Kind::integer),
      row_of<kIsa, Activations::a8>(Kind::integer),  row_of<kIsa, Activations::f32>(Kind::grid),
      row_of<kIsa, Activations::a16>(Kind::grid),    row_of<kIsa, Activations::a8>(Kind::grid)};
  return rows;
}

// Appends the rows of views of 2 to kMost bits.
template <Isa kIsa, int kMost>
void append_views(Kind kind, std::vector<LinearKernel>& rows) {
  if constexpr (kMost > 2) append_views<kIsa, kMost - 1>(kind, rows);
  rows.push_back(row_of<kIsa, Activations::f32, kMost>(kind));
  rows.push_back(row_of<kIsa, Activations::a16, kMost>(kind));
  rows.push_back(row_of<kIsa, Activations::a8, kMost>(kind));
}
template <Isa kIsa>
std::span<const LinearKernel> views_of() {
  static const std::vector<LinearKernel> rows = [] {
    std::vector<LinearKernel> all;
    append_views<kIsa, 5>(Kind::grid, all);
    append_views<kIsa, 7>(Kind::integer, all);
    return all;
  }();
  return rows;
}

template <Isa kIsa, Activations kMode>
LinearKernel split_row_of(Kind kind) {
  LinearKernel row = row_of<kIsa, kMode>(kind);
  row.multiply = multiply_split<kIsa, kMode>;
  return row;
}
template <Isa kIsa>
std::span<const LinearKernel> splits_of() {
  static const std::array<LinearKernel, 6> rows = {
      split_row_of<kIsa, Activations::f32>(Kind::integer), split_row_of<kIsa, Activations::a16>(Kind::integer),
      split_row_of<kIsa, Activations::a8>(Kind::integer),  split_row_of<kIsa, Activations::f32>(Kind::grid),
      split_row_of<kIsa, Activations::a16>(Kind::grid),    split_row_of<kIsa, Activations::a8>(Kind::grid)};
  return rows;
}

template <typename Of>
std::span<const LinearKernel> of_isa(Isa isa, const Of& of) {
  return isa == Isa::amx      ? of.template operator()<Isa::amx>()
         : isa == Isa::avx512 ? of.template operator()<Isa::avx512>()
         : isa == Isa::avx2   ? of.template operator()<Isa::avx2>()
                              : of.template operator()<Isa::portable>();
}

// These are the arrays of prepared integers, one after the other, each 64-byte aligned.
struct Parts {
  int64_t groups, row_bytes;
  size_t scale, sum, half, total;

  Parts(Form form, int64_t rows, int64_t columns, int64_t group)
      : groups((columns + group - 1) / group), row_bytes(form == Form::i8 ? kSpan : 2 * kSpan) {
    const int64_t planes = round_up((columns + kSpan - 1) / kSpan * rows * row_bytes, 64),
                  one = round_up(groups * rows * 4, 64);
    scale = static_cast<size_t>(planes), sum = static_cast<size_t>(planes + one);
    half = static_cast<size_t>(planes + 2 * one), total = half + static_cast<size_t>(group == kSpan ? one : 0);
  }
};

}  // namespace

std::span<const LinearKernel> lowbit_kernels(Isa isa) {
  return of_isa(isa, []<Isa kIsa>() { return rows_of<kIsa>(); });
}
std::span<const LinearKernel> view_kernels(Isa isa) {
  return of_isa(isa, []<Isa kIsa>() { return views_of<kIsa>(); });
}

bool ends_at(const Linear& w, int bits) {
  return bits < w.spec.bits && lowbit::planes_of(layout_of<0>(w), w.cut).ends_at(bits);
}

void end_at(Isa isa, int bits, Linear& w) {
  const Layout l = layout_of<0>(w);
  if (!lowbit::ends_inside(w.spec.bits, bits) || kMergedBlocks * l.block_bytes > kMergedBytes) return;
  w.cut = bits;
  auto* const blocks = w.packed.as<uint8_t>() + l.front;
  for (int64_t block = 0; block < l.blocks; ++block) lowbit::split_block(l, bits, blocks + block * l.block_bytes);
  for (const LinearKernel*& kernel : w.kernels)
    for (const LinearKernel& row : of_isa(isa, []<Isa kIsa>() { return splits_of<kIsa>(); }))
      if (row.kind == w.spec.kind && row.mode == kernel->mode) kernel = &row;
}

int64_t unread_bytes(const Linear& w, int bits) {
  const Layout l = layout_of(w.spec, w.out, w.in);
  return l.blocks * l.spans * 64 * (w.spec.bits - bits);
}

size_t prepared_integer_bytes(Form form, int64_t rows, int64_t columns, int64_t group) {
  return Parts(form, rows, columns, group).total;
}

Prepared prepare_integers(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group,
                          IntegerBits bits, std::byte* scratch, int64_t first, int64_t last) {
  const Parts parts(form, rows, columns, group);
  const lowbit::PrepareJob job{
      .x = x,
      .rows = rows,
      .columns = columns,
      .group_spans = group / kSpan,
      .steps = form == Form::i8 ? static_cast<float>((1 << (bits.most - 1)) - 1) : lowbit::kSteps16,
      .fine_spans = form == Form::i8 ? bits.fine / kSpan : std::numeric_limits<int64_t>::max(),
      .first = first,
      .last = last,
      .planes = reinterpret_cast<int8_t*>(scratch),
      .scale = reinterpret_cast<float*>(scratch + parts.scale),
      .sum = reinterpret_cast<int32_t*>(scratch + parts.sum),
      .half = group == kSpan ? reinterpret_cast<int32_t*>(scratch + parts.half) : nullptr};
  const lowbit::Kernels& kernels = kernels_of(isa);
  (form == Form::i8x2 ? kernels.prepare16 : form == Form::i16 ? kernels.prepare_words : kernels.prepare8)(job);
  return {.form = form,
          .rows = rows,
          .columns = columns,
          .group = group,
          .bits = bits.most,
          .values = x,
          .plane0 = job.planes,
          .plane1 = job.planes + (form == Form::i8x2 ? kSpan : 0),
          .scale = job.scale,
          .sum = job.sum,
          .half = job.half,
          .stride = parts.row_bytes};
}

}  // namespace fidelio::cpu
