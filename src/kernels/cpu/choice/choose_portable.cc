// This file compiles choose_body.h for any machine.
#include "kernels/cpu/choice/choose_body.h"

namespace fidelio::cpu {

const ChoiceKernels kChoicePortable = kChoiceHere;

}  // namespace fidelio::cpu
