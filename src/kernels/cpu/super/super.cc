// This file has the rows of the kernel table for ggml's super-blocks, and their packing.
#include "kernels/cpu/super/super.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/linear/lowbit_linear.h"
#include "kernels/cpu/super/super_kernels.h"

namespace fidelio::cpu {
namespace {

using lowbit::kBlock;
using lowbit::kSpan;
using lowbit::Layout;
using lowbit::SuperJob;

constexpr int kLayout = 300;  // every row of this file reads the same packing

int kind_of(const FormatSpec& spec) { return spec.has_fixed_table() ? lowbit::kSuperTable : spec.bits - 2; }

// Returns the layout of a weight, in a job without activations.
SuperJob job_of(const FormatSpec& spec, int64_t out, int64_t in) {
  SuperJob job{};
  Layout& l = job.job.layout;
  const int kind = kind_of(spec);
  l.coding = lowbit::coding_of_super(kind);
  l.code_bits = spec.bits;
  l.scale = lowbit::Scale::f16;
  l.has_zero = false;
  l.out = out, l.in = in;
  l.blocks = (out + kBlock - 1) / kBlock;
  l.spans = (in + kSpan - 1) / kSpan;
  l.groups = lowbit::has_half_groups(kind) ? 2 * l.spans : l.spans;  // wherever the row ends
  l.group_spans = 1;
  l.activation_group_spans = 1;
  l.activation_groups = l.spans;
  l.front = kind == lowbit::kSuperTable ? 64 : 0;
  job.super_spans = spec.super / kSpan;
  const bool minima = lowbit::has_minima(kind);
  const int64_t supers = (l.spans + job.super_spans - 1) / job.super_spans;
  l.zero_offset = l.groups * kBlock;
  job.super_offset = l.zero_offset + (minima && !lowbit::has_nibbles(kind) ? l.groups * kBlock : 0);
  job.minimum_offset = job.super_offset + supers * kBlock * 2;
  place_planes(l, spec.bits, job.minimum_offset + (minima ? supers * kBlock * 2 : 0));
  return job;
}

Buffer pack(const LinearWeight& w) {
  const SuperJob job = job_of(w.spec, w.out, w.in);
  const Layout& l = job.job.layout;
  const auto& m = std::get<SuperBlock>(w.main);
  Buffer packed(static_cast<size_t>(l.bytes()));
  auto* bytes = packed.as<uint8_t>();
  for (size_t i = 0; l.front > 0 && i < kFixedTable.size(); ++i) bytes[i] = static_cast<uint8_t>(kFixedTable[i] + 128);
  for (int64_t block = 0; block < l.blocks; ++block) {
    uint8_t* base = bytes + l.front + block * l.block_bytes;
    pack_codes(m.codes, l, block, base);
    pack_groups(m.scale.view, l, block, base);
    if (m.minimum) pack_groups(m.minimum.view, l, block, base + l.zero_offset);
    pack_groups(m.super_scale.view, l, block, base + job.super_offset);
    if (m.super_minimum) pack_groups(m.super_minimum.view, l, block, base + job.minimum_offset);
  }
  return packed;
}

// Decodes a row with the same operations in the same order as formats' decode_row().
void decode_row(const Linear& w, int64_t row, float* values) {
  const SuperJob job = job_of(w.spec, w.out, w.in);
  const Layout& l = job.job.layout;
  const int kind = kind_of(w.spec), half = lowbit::has_half_groups(kind) ? 2 : 1;
  const uint8_t* packed = w.packed.as<const uint8_t>();
  const uint8_t* base = packed + l.front + row / kBlock * l.block_bytes;
  const int r = static_cast<int>(row % kBlock);
  const auto half_at = [&](int64_t offset, int64_t super) {
    return to_float(reinterpret_cast<const f16*>(base + offset)[super * kBlock + r]);
  };
  std::vector<uint8_t> codes(static_cast<size_t>(l.in));
  read_codes(lowbit::planes_of(l, 0), base, r, codes);
  for (int64_t c = 0; c < l.in; ++c) {
    const int64_t group = c * half / kSpan, super = c / (job.super_spans * kSpan);
    const uint8_t byte = base[group * kBlock + r];
    const uint8_t minimum = lowbit::has_nibbles(kind) ? byte >> 4 : base[l.zero_offset + group * kBlock + r];
    const int scale = !w.spec.symmetric ? (lowbit::has_nibbles(kind) ? byte & 15 : byte) : static_cast<int8_t>(byte);
    const float step = half_at(job.super_offset, super) * static_cast<float>(scale);
    const int code = l.front > 0 ? packed[codes[static_cast<size_t>(c)]] : codes[static_cast<size_t>(c)];
    if (w.spec.symmetric)
      values[c] = step * static_cast<float>(code - lowbit::middle_of(kind));
    else
      values[c] = step * static_cast<float>(code) - half_at(job.minimum_offset, super) * static_cast<float>(minimum);
  }
}

const lowbit::SuperKernels& kernels_of(Isa isa) {
  return isa == Isa::amx      ? lowbit::kSuperAmx
         : isa == Isa::avx512 ? lowbit::kSuperAvx512
         : isa == Isa::avx2   ? lowbit::kSuperAvx2
                              : lowbit::kSuperPortable;
}

template <Isa kIsa, Activations kMode>
void multiply(const Linear& w, const Prepared& x, int64_t first, int64_t last, float* y, int64_t y_stride, bool add) {
  SuperJob job = job_of(w.spec, w.out, w.in);
  lowbit::Job& j = job.job;
  j.packed = w.packed.as<const uint8_t>(), j.bias = w.bias.as<const float>();
  j.rows = x.rows, j.planes = static_cast<const int8_t*>(x.plane0), j.values = x.values;
  j.scale = x.scale, j.sum = x.sum, j.half = x.half;
  j.first = first, j.last = last, j.y = y, j.y_stride = y_stride, j.add = add;
  const lowbit::SuperKernels& kernels = kernels_of(kIsa);
  const auto& row = kMode == Activations::f32 ? kernels.f32 : kMode == Activations::a16 ? kernels.a16 : kernels.a8;
  row[kind_of(w.spec)](job);
}

bool accepts(const FormatSpec& spec, int64_t, int64_t) { return spec.kind == Kind::super_block; }

constexpr const char* kNames[3][4] = {{"super f32 portable", "super f32 avx2", nullptr, nullptr},
                                      {"super a16 portable", "super a16 avx2", "super a16 avx512", "super a16 amx"},
                                      {"super a8 portable", "super a8 avx2", "super a8 avx512", "super a8 amx"}};

template <Isa kIsa, Activations kMode>
constexpr LinearKernel row_of() {
  return {.name = kNames[static_cast<int>(kMode)][static_cast<int>(kIsa)],
          .kind = Kind::super_block,
          .bits = 0,
          .mode = kMode,
          .isa = kIsa,
          .form = kMode == Activations::f32   ? Form::f32
                  : kMode != Activations::a16 ? Form::i8
                  : kIsa == Isa::avx2         ? Form::i16
                                              : Form::i8x2,
          .block = kBlock,
          .accepts = accepts,
          .pack = pack,
          .layout = kLayout,
          .multiply = multiply<kIsa, kMode>,
          .decode_row = decode_row};
}

template <Isa kIsa>
std::span<const LinearKernel> rows_of() {
  static const std::array<LinearKernel, 3> rows = {row_of<kIsa, Activations::f32>(), row_of<kIsa, Activations::a16>(),
                                                   row_of<kIsa, Activations::a8>()};
  return rows;
}

}  // namespace

std::span<const LinearKernel> super_kernels(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return rows_of<Isa::portable>();
    case Isa::avx2:
      return rows_of<Isa::avx2>();
    case Isa::avx512:
      return rows_of<Isa::avx512>().subspan(1);  // without FP32
    default:
      return rows_of<Isa::amx>().subspan(1);
  }
}

}  // namespace fidelio::cpu
