// This file defines the frame that every CPU linear kernel fits into: y (M, out) = or += x (M, in) w^T + bias. A
// kernel consists of three functions:
//
//   pack       runs once per weight: it turns the stored bit planes into the kernel's own layout, of the same size
//   prepare    runs once per input and activation form: it turns FP32 rows into what the kernel multiplies (INT8
//              planes, BF16 or FP32 itself)
//   multiply   computes a range of output blocks for all M rows; several threads call it for disjoint ranges
//
// A kernel is a row of a table (LinearKernel). The row is chosen once, when the weight is packed, by format,
// activations and instruction set. A weight for which there is no row is decoded to dense at that point, and a line
// is logged.
//
// Row invariance: output (m, o) depends on row m of x and row o of w alone. It is computed in one fixed order over K
// that does not depend on M, on the tile that m falls into, or on how the blocks are spread over threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/tensor.h"
#include "formats/linear_weight.h"
#include "kernels/backend.h"

namespace fidelio::cpu {

// Each instruction set includes all those before it. avx512 stands for AVX-512 F, BW, VL, DQ, VNNI, VBMI and BF16;
// amx is avx512 with AMX TILE and INT8.
enum class Isa : uint8_t { portable, avx2, avx512, amx };
std::string_view name_of(Isa isa);
Isa parse_isa(std::string_view name);   // throws Error naming the sets that exist
std::span<const Isa> supported_isas();  // those of this machine, best last

// A Prepared is what prepare() leaves for multiply(). It holds plain pointers, 64-byte aligned, into the backend's
// scratch, so that files compiled for a wider instruction set need nothing but this struct.
enum class Form : uint8_t { f32, bf16, i8x2, i8, i16 };
constexpr bool is_integer(Form form) { return form >= Form::i8x2; }
// The integers of form i8 have at most `most` bits, a magnitude of up to 2^(most - 1) - 1; columns from `fine` on
// have 8 bits, a magnitude of up to 127.
struct IntegerBits {
  constexpr IntegerBits(int most_bits = 8, int64_t fine_columns = INT64_MAX) : most(most_bits), fine(fine_columns) {}
  int most;
  int64_t fine;
};
struct Prepared {
  Form form;
  int64_t rows, columns;  // M and K
  int64_t group;          // columns per activation scale (integer forms)
  int bits;               // bits of the integers (i8 only)
  const float* values;    // f32: (M, K)
  const void* plane0;     // bf16: (M, K padded to even); i8x2, i8, i16: (K / 32, M, stride), drawn in lowbit.h
  const void* plane1;     // i8x2: 32 bytes into plane0, the first low plane; x = scale * (128 hi + lo)
  const float* scale;     // (groups, M) FP32
  const int32_t* sum;     // (groups, M): the exact sum of 128 hi + lo (or of the i8 plane) over the group
  const int32_t* half;    // (groups, M): the same over the first 16 columns; null unless a group is 32 columns
  int64_t stride;         // bytes from row to row of plane0 (integer forms: within one span of 32 columns)
};

struct Linear;
struct LinearKernel {
  const char* name;  // the name in `bench linear` and in logs, e.g. "int4 a16 avx512"
  Kind kind;
  int bits;  // bits of the code; 0 = any
  Activations mode;
  Isa isa;
  Form form;
  int block;  // outputs per block; multiply's range counts such blocks
  bool (*accepts)(const FormatSpec& spec, int64_t out, int64_t in);
  Buffer (*pack)(const LinearWeight& weight);  // table rows with equal `layout` share one packing
  int layout;
  void (*multiply)(const Linear& w, const Prepared& x, int64_t first_block, int64_t last_block, float* y,
                   int64_t y_stride, bool add);
  // Serves embeddings: gathers one row from the packed form.
  void (*decode_row)(const Linear& w, int64_t row, float* values);
};

// A Linear is a packed weight. Its kernels may differ by activation mode, but all of them read the one packed buffer.
struct Linear {
  int64_t out = 0, in = 0;
  FormatSpec spec;
  Buffer packed;
  Buffer bias;                          // (out) FP32, or empty
  const LinearKernel* kernels[3] = {};  // for f32, a16 and a8
  // A view of so many bits ends inside a plane, which is split for it (lowbit_split.h); 0 = no plane is split.
  int cut = 0;
  // A View reads the high bits of each code, up to a place where the codes can be cut. The list has the fewest bits
  // first; an entry with bits 0 is unused.
  struct View {
    int bits = 0;
    int64_t unread = 0;  // bytes of `packed` that the view leaves out
    const LinearKernel* kernels[3] = {};
  };
  View views[3] = {};
  // Returns the widest view of at most reading.high_bits bits, or the narrowest one if all are wider; returns null if
  // the weight is to be read whole.
  const View* view(Reading reading) const {
    if (reading.high_bits == 0 || reading.high_bits >= spec.bits || views[0].bits == 0) return nullptr;
    const View* widest = &views[0];
    for (const View& v : views)
      if (v.bits != 0 && v.bits <= reading.high_bits) widest = &v;
    return widest;
  }
  const LinearKernel& kernel(Reading reading) const {
    const View* v = view(reading);
    const auto mode = static_cast<size_t>(std::min(reading.activations, Activations::a8));
    return v ? *v->kernels[mode] : *kernels[mode];
  }
  int64_t bytes() const { return static_cast<int64_t>(packed.size() + bias.size()); }
};

// These functions return the table rows, gathered from the files that implement them. Among rows for the same format,
// mode and instruction set the best comes last.
std::span<const LinearKernel> dense_kernels(Isa isa);
std::span<const LinearKernel> lowbit_kernels(Isa isa);
// Returns the rows that multiply by a view of `bits` high bits (formats' high_planes()) from the whole weight's
// Linear: they read the same packed bytes, but fewer of them. They accept integers and grids whose planes end there.
std::span<const LinearKernel> view_kernels(Isa isa);
// Returns true if a plane of w ends after its `bits` high bits.
bool ends_at(const Linear& w, int bits);
// Splits the plane of w in which a view of `bits` bits ends, if it ends inside one. The weight must have been packed
// by rows of lowbit_kernels(). Integers and grids are split, except those whose rows are too long to be reassembled.
void end_at(Isa isa, int bits, Linear& w);
// Returns the bytes of the packed form that a view of `bits` bits does not read.
int64_t unread_bytes(const Linear& w, int bits);

// Returns the bytes of scratch that prepare() needs.
size_t prepared_bytes(Form form, int64_t rows, int64_t columns, int64_t group);
// Prepares rows [first, last) of x in `scratch`, which is laid out for `rows` rows; the result describes all rows.
Prepared prepare(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group, IntegerBits bits,
                 std::byte* scratch, int64_t first, int64_t last);

}  // namespace fidelio::cpu
