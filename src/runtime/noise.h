// Noise in a weight: what sensitivities are measured with, and what `noise` studies.
#pragma once
#include <cstdint>

#include "formats/linear_weight.h"

namespace fidelio {

// A dense weight with noise added: per element sigma times the matrix's root mean square, Gaussian or uniform of that
// variance, so that the relative noise power ||N||^2 / ||W||^2 is sigma^2 (SLQ appendix C.4 scales by the matrix's
// standard deviation).
LinearWeight noisy_weight(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform);

}  // namespace fidelio
