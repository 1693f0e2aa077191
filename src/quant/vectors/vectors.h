// Vector codes (formats/vector_code.h) of one matrix. What is kept of SCVQ (ACL 2026, 2026.acl-long.403): bi-normalised
// rows and columns, codebooks by salience-weighted k-means++ and Lloyd under sign symmetry, corrections where residual
// times salience is largest. What is done otherwise: salience is the price of an error in its column under the Hessian
// times the scales' squares, so that k-means, the choice of corrections and the loss all count the same error; codes are
// chosen eight columns at a time with GPTQ's error feedback; corrected vectors are left out of clustering and need no
// zero centroid.
#pragma once
#include "quant/quantize.h"

namespace fidelio {

// By distance alone; `price` (in) weights squared errors by column.
LinearWeight quantize_vectors(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                              std::span<const float> price, const SharedCodebooks* codebooks, ThreadPool& pool);
// With error feedback and descent (vector_work.h). The loss of the report is after descent, loss_gptq before.
GptqResult quantize_vectors(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                            const Hessian& hessian, const GptqOptions& options, ThreadPool& pool);

}  // namespace fidelio
