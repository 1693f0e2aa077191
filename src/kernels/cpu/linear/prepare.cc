// This file turns a linear's input into what is multiplied: FP32 as it is, BF16, or integer planes (lowbit*.cc).
#include "kernels/cpu/linear/dense.h"
#include "kernels/cpu/linear/lowbit_linear.h"

namespace fidelio::cpu {
namespace {

constexpr int64_t bf16_stride(int64_t columns) { return (columns * 2 + 63) / 64 * 64; }

}  // namespace

size_t prepared_bytes(Form form, int64_t rows, int64_t columns, int64_t group) {
  switch (form) {
    case Form::f32:
      return 0;
    case Form::bf16:
      return static_cast<size_t>(rows * bf16_stride(columns));
    default:
      return prepared_integer_bytes(form, rows, columns, group);
  }
}

Prepared prepare(Form form, Isa isa, const float* x, int64_t rows, int64_t columns, int64_t group, IntegerBits bits,
                 std::byte* scratch, int64_t first, int64_t last) {
  if (is_integer(form)) return prepare_integers(form, isa, x, rows, columns, group, bits, scratch, first, last);
  Prepared p{};
  p.form = form;
  p.rows = rows;
  p.columns = columns;
  p.group = group;
  p.values = x;
  if (form == Form::f32) return p;
  p.plane0 = scratch;
  p.stride = bf16_stride(columns);
  for (int64_t row = first; row < last; ++row) {
    auto* out = reinterpret_cast<uint16_t*>(scratch + row * p.stride);
    kernel_set(isa).to_bf16(x + row * columns, out, columns);
    if (columns % 2 != 0) out[columns] = 0;  // the partner of the last column in its pair
  }
  return p;
}

}  // namespace fidelio::cpu
