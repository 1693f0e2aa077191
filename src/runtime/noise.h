// This file adds noise to a weight. Sensitivities are measured with such noise, and the verb `noise` studies it.
#pragma once
#include <cstdint>

#include "formats/linear_weight.h"

namespace fidelio {

// Returns a dense weight with noise added to every element. The noise is Gaussian, or uniform with the same variance,
// and its standard deviation is sigma times the matrix's root mean square. The relative noise power ||N||^2 / ||W||^2
// is therefore sigma^2. (SLQ, appendix C.4, scales by the matrix's standard deviation instead.)
LinearWeight noisy_weight(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform);

}  // namespace fidelio
