// The frame every CPU linear kernel fits into: y (M, out) = or += x (M, in) w^T + bias.
//
//   pack       once per weight: canonical planes -> the kernel's own layout, same number of bytes
//   prepare    once per input and activation form: FP32 rows -> what the kernel multiplies (INT8 planes, BF16,
//              FP32 itself)
//   multiply   a range of output blocks for all M rows; called from several threads on disjoint ranges
//
// A kernel is a row of a table (LinearKernel); the row is chosen once, at pack time, by (format, activations,
// instruction set). No row: the weight is decoded to dense then, with a logged line.
//
// Row invariance: output (m, o) is a function of row m of x and row o of w alone, computed in one fixed order over K
// that does not depend on M, on the tile m falls into, or on how blocks are spread over threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/tensor.h"
#include "formats/linear_weight.h"
#include "kernels/backend.h"

namespace fidelio::cpu {

// avx512 = F BW VL DQ VNNI VBMI BF16; amx = avx512 and TILE INT8. Each has all of those before it.
enum class Isa : uint8_t { portable, avx2, avx512, amx };
std::string_view name_of(Isa isa);
Isa parse_isa(std::string_view name);   // throws Error naming the sets there are
std::span<const Isa> supported_isas();  // of this machine, best last

// What prepare() leaves for multiply(): plain pointers into the backend's scratch, 64-byte aligned, so that files
// compiled for a wider instruction set need nothing but this struct.
enum class Form : uint8_t { f32, bf16, i8x2, i8, i16 };
constexpr bool is_integer(Form form) { return form >= Form::i8x2; }
// Of i8 integers: at most 2^(most - 1) - 1; in columns from `fine` on, 127.
struct IntegerBits {
  constexpr IntegerBits(int most_bits = 8, int64_t fine_columns = INT64_MAX) : most(most_bits), fine(fine_columns) {}
  int most;
  int64_t fine;
};
struct Prepared {
  Form form;
  int64_t rows, columns;  // M, K
  int64_t group;          // columns per activation scale (integer forms)
  int bits;               // of the integers (i8 only)
  const float* values;    // f32: (M, K)
  const void* plane0;     // bf16: (M, K padded to even) · i8x2, i8, i16: (K / 32, M, stride), drawn in lowbit.h
  const void* plane1;     // i8x2: 32 bytes into plane0, the first low plane; x = scale * (128 hi + lo)
  const float* scale;     // (groups, M) FP32
  const int32_t* sum;     // (groups, M): sum of 128 hi + lo (or of the i8 plane) over the group, exact
  int64_t stride;         // bytes from row to row of plane0 (integer forms: within one span of 32 columns)
};

struct Linear;
struct LinearKernel {
  const char* name;  // shown by `bench linear` and in logs: "int4 a16 avx512"
  Kind kind;
  int bits;  // of the code; 0 = any
  Activations mode;
  Isa isa;
  Form form;
  int block;  // outputs per block: multiply's range counts blocks of this many
  bool (*accepts)(const FormatSpec& spec, int64_t out, int64_t in);
  Buffer (*pack)(const LinearWeight& weight);  // rows of the table with equal `layout` share one packing
  int layout;
  void (*multiply)(const Linear& w, const Prepared& x, int64_t first_block, int64_t last_block, float* y,
                   int64_t y_stride, bool add);
  void (*decode_row)(const Linear& w, int64_t row, float* values);  // for embeddings: gathers from the packed form
};

// A weight in its packed life. kernels[mode] may differ by activation mode but all read the one packed buffer.
struct Linear {
  int64_t out = 0, in = 0;
  FormatSpec spec;
  Buffer packed;
  Buffer bias;                          // f32 (out) or empty
  const LinearKernel* kernels[3] = {};  // f32, a16, a8
  int cut = 0;  // a view of so many bits ends inside a plane, which is split for it (lowbit_split.h)
  // Where the codes can be cut, the fewest bits first; bits 0: there is no such cut.
  struct View {
    int bits = 0;
    int64_t unread = 0;  // bytes of `packed` that it leaves out
    const LinearKernel* kernels[3] = {};
  };
  View views[3] = {};
  // Null: read whole. The widest view of at most reading.high_bits, else the narrowest there is.
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

// The rows, gathered from the files that implement them. Order within a (format, mode): best last among equal ISA.
std::span<const LinearKernel> dense_kernels(Isa isa);
std::span<const LinearKernel> lowbit_kernels(Isa isa);
// Rows that multiply by a view (formats' high_planes) of `bits` high bits, in the whole weight's Linear: they read the
// same packed bytes, less of them. Accepts integers and grids; their planes must end there.
std::span<const LinearKernel> view_kernels(Isa isa);
bool ends_at(const Linear& w, int bits);
// Of a weight that rows of lowbit_kernels() have packed and are chosen for: splits the plane in which a view of `bits`
// bits ends, if it ends in one; of integers and grids whose rows are not too long to be put together again.
void end_at(Isa isa, int bits, Linear& w);
// Bytes of the packed form that a view of `bits` bits does not read.
int64_t unread_bytes(const Linear& w, int bits);

// The bytes of scratch prepare needs.
size_t prepared_bytes(Form form, int64_t rows, int64_t columns, int64_t group);
// Rows [first, last) of x into `scratch` laid out for `rows` rows; the returned view covers all rows.
Prepared prepare(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group, IntegerBits bits,
                 std::byte* scratch, int64_t first, int64_t last);

}  // namespace fidelio::cpu
