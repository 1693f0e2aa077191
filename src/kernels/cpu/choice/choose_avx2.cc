// This file compiles choose_body.h for AVX2.
#include "kernels/cpu/choice/choose_body.h"

namespace fidelio::cpu {

const ChoiceKernels kChoiceAvx2 = kChoiceHere;

}  // namespace fidelio::cpu
