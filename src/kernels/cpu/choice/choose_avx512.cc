// This file compiles choose_body.h for AVX-512.
#include "kernels/cpu/choice/choose_body.h"

namespace fidelio::cpu {

const ChoiceKernels kChoiceAvx512 = kChoiceHere;

}  // namespace fidelio::cpu
