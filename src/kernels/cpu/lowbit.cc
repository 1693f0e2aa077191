// No low-bit kernels yet: codes are decoded to dense at pack time.
#include "kernels/cpu/lowbit_linear.h"

namespace fidelio::cpu {

std::span<const LinearKernel> lowbit_kernels(Isa) { return {}; }
int64_t activation_group(const FormatSpec& spec, int64_t in) { return spec.group_size(in); }
size_t prepared_integer_bytes(Form, int64_t, int64_t, int64_t) { return 0; }
Prepared prepare_integers(Form, Isa, const float*, int64_t, int64_t, int64_t, std::byte*, int64_t, int64_t) {
  throw Error("there are no integer kernels");
}

}  // namespace fidelio::cpu
