#include "kernels/cpu/linear/dense.h"

#include <array>
#include <vector>

#include "formats/small_float.h"

namespace fidelio::cpu {
namespace {

bool always(const FormatSpec&, int64_t, int64_t) { return true; }

template <typename T>
Buffer interleave(const LinearWeight& weight) {
  const T* w = std::get<Dense>(weight.main).w.as<T>().data();
  constexpr int kElement = sizeof(T);
  // Columns of BF16 come in pairs, side by side in each output's slot.
  constexpr int kPair = std::is_same_v<T, bf16> ? 2 : 1;
  const int64_t stride = dense_block_stride(weight.spec.kind, weight.in), blocks = (weight.out + kBlock - 1) / kBlock;
  Buffer packed(static_cast<size_t>(blocks * stride));
  for (int64_t o = 0; o < weight.out; ++o) {
    T* block = reinterpret_cast<T*>(packed.data() + o / kBlock * stride) + o % kBlock * kPair;
    const T* row = w + o * weight.in;
    for (int64_t k = 0; k < weight.in; ++k) block[k / kPair * kBlock * kPair + k % kPair] = row[k];
  }
  static_assert(kElement * kBlock * kPair <= 64);
  return packed;
}

template <typename T>
void gather_row(const Linear& w, int64_t row, float* values) {
  constexpr int kPair = std::is_same_v<T, bf16> ? 2 : 1;
  const T* block = reinterpret_cast<const T*>(w.packed.data() + row / kBlock * dense_block_stride(w.spec.kind, w.in)) +
                   row % kBlock * kPair;
  for (int64_t k = 0; k < w.in; ++k) {
    const T x = block[k / kPair * kBlock * kPair + k % kPair];
    if constexpr (std::is_same_v<T, float>)
      values[k] = x;
    else
      values[k] = to_float(x);
  }
}

// An FP8 weight is packed as the row scales of whole blocks, followed by the codes, a byte each.
int64_t scale_bytes(int64_t out) { return (out + kBlock - 1) / kBlock * kBlock * 4; }

Buffer interleave_e4m3(const LinearWeight& weight) {
  const auto& fp = std::get<FpBlock>(weight.main);
  const int64_t stride = dense_block_stride(Kind::fp8, weight.in), blocks = (weight.out + kBlock - 1) / kBlock;
  Buffer packed(static_cast<size_t>(scale_bytes(weight.out) + blocks * stride));
  std::vector<uint8_t> codes(static_cast<size_t>(weight.in));
  for (int64_t o = 0; o < weight.out; ++o) {
    packed.as<float>()[o] = fp.row_scale.as<const float>()[o];
    fp.codes.get_row(o, codes);
    auto* block = packed.as<uint8_t>() + scale_bytes(weight.out) + o / kBlock * stride + o % kBlock;
    for (int64_t k = 0; k < weight.in; ++k) block[k * kBlock] = codes[k];
  }
  return packed;
}

void gather_e4m3_row(const Linear& w, int64_t row, float* values) {
  const auto* block = w.packed.as<const uint8_t>() + scale_bytes(w.out) +
                      row / kBlock * dense_block_stride(Kind::fp8, w.in) + row % kBlock;
  for (int64_t k = 0; k < w.in; ++k) values[k] = w.packed.as<const float>()[row] * e4m3_to_float(block[k * kBlock]);
}

template <Isa isa, DenseMultiply KernelSet::*function>
void multiply(const Linear& w, const Prepared& x, int64_t first, int64_t last, float* y, int64_t y_stride, bool add) {
  const bool wide = x.form == Form::f32;
  const bool scaled = w.spec.kind == Kind::fp8;
  (kernel_set(isa).*function)({.packed = w.packed.data() + (scaled ? scale_bytes(w.out) : 0),
                               .block_stride = dense_block_stride(w.spec.kind, w.in),
                               .bias = w.bias.size() ? w.bias.as<float>() : nullptr,
                               .out = w.out,
                               .in = w.in,
                               .x = static_cast<const std::byte*>(wide ? static_cast<const void*>(x.values) : x.plane0),
                               .x_stride = wide ? x.columns * 4 : x.stride,
                               .rows = x.rows,
                               .y = y,
                               .y_stride = y_stride,
                               .add = add,
                               .row_scale = scaled ? w.packed.as<float>() : nullptr},
                              first, last);
}

constexpr const char* kNames[3][5] = {
    {"f32 x f32 portable", "f16 x f32 portable", "bf16 x f32 portable", "fp8 x f32 portable", "bf16 x bf16 portable"},
    {"f32 x f32 avx2", "f16 x f32 avx2", "bf16 x f32 avx2", "fp8 x f32 avx2", "bf16 x bf16 avx2"},
    {"f32 x f32 avx512", "f16 x f32 avx512", "bf16 x f32 avx512", "fp8 x f32 avx512", "bf16 x bf16 avx512"}};

// Returns the five table rows of one instruction set and activation mode. BF16 weights have two rows in the modes
// that serve, one for FP32 activations and (with AVX-512) one for BF16 activations; the backend picks one of them by
// bf16_dot_is_faster(), the same for every M. FP8, FP16 and FP32 weights always meet FP32 activations.
template <Isa isa, Activations mode>
std::array<LinearKernel, 5> rows_of_mode() {
  const auto row = [](const char* name, Kind kind, Form form, auto pack, auto multiply, auto decode) {
    return LinearKernel{name, kind, 0, mode, isa, form, kBlock, always, pack, static_cast<int>(kind), multiply, decode};
  };
  const auto& names = kNames[static_cast<int>(isa)];
  return {
      row(names[0], Kind::f32, Form::f32, interleave<float>, multiply<isa, &KernelSet::f32_f32>, gather_row<float>),
      row(names[1], Kind::f16, Form::f32, interleave<f16>, multiply<isa, &KernelSet::f16_f32>, gather_row<f16>),
      row(names[2], Kind::bf16, Form::f32, interleave<bf16>, multiply<isa, &KernelSet::bf16_f32>, gather_row<bf16>),
      row(names[3], Kind::fp8, Form::f32, interleave_e4m3, multiply<isa, &KernelSet::e4m3_f32>, gather_e4m3_row),
      row(names[4], Kind::bf16, Form::bf16, interleave<bf16>, multiply<isa, &KernelSet::bf16_bf16>, gather_row<bf16>)};
}

template <Isa isa>
std::span<const LinearKernel> table() {
  // The last row of each mode is left out if the instruction set has no BF16 dot product, and always in f32 mode.
  static const std::vector<LinearKernel> rows = [] {
    std::vector<LinearKernel> all;
    const auto take = [&](const auto& five, bool dot) {
      all.insert(all.end(), five.begin(), five.begin() + (dot ? 5 : 4));
    };
    const bool dot = kernel_set(isa).bf16_bf16 != nullptr;
    take(rows_of_mode<isa, Activations::f32>(), false);
    take(rows_of_mode<isa, Activations::a16>(), dot);
    take(rows_of_mode<isa, Activations::a8>(), dot);
    return all;
  }();
  return rows;
}

}  // namespace

const KernelSet& kernel_set(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return kAvx512;
  if (isa == Isa::avx2) return kAvx2;
#endif
  check(isa == Isa::portable, "the {} kernels are not in this build: use portable", name_of(isa));
  return kPortable;
}

int64_t dense_block_stride(Kind kind, int64_t in) {
  if (kind == Kind::bf16) return (in + 1) / 2 * 64;
  return in * kBlock * (kind == Kind::f32 ? 4 : kind == Kind::fp8 ? 1 : 2);
}

std::span<const LinearKernel> dense_kernels(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return table<Isa::portable>();
    case Isa::avx2:
      return table<Isa::avx2>();
    default:
      return table<Isa::avx512>();
  }
}

bool bf16_dot_is_faster([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  return kernel_set(isa).bf16_bf16 && __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace fidelio::cpu
