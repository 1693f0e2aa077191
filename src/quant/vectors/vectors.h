// This file makes vector codes (formats/vector_code.h) of one matrix. It keeps these parts of SCVQ (ACL 2026,
// 2026.acl-long.403): rows and columns that are both normalised, codebooks by k-means++ and Lloyd's iterations that
// are weighted by salience, under sign symmetry, and corrections where residual times salience is largest.
//
// It differs in these. Salience is the price of an error in its column under the Hessian, times the scales' squares,
// so that k-means, the choice of corrections and the loss all count the same error. Codes are chosen eight columns at
// a time with GPTQ's error feedback. Corrected vectors are left out of the clustering and need no zero centroid.
#pragma once
#include "quant/quantize.h"

namespace fidelio {

// Quantises by distance alone. `price` (in) weights squared errors by column.
LinearWeight quantize_vectors(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                              std::span<const float> price, const SharedCodebooks* codebooks, ThreadPool& pool);
// Quantises with error feedback and descent (vector_work.h). The report's loss is after the descent and its loss_gptq
// before.
GptqResult quantize_vectors(const FormatSpec& spec, std::span<const float> w, int64_t out, int64_t in,
                            const Hessian& hessian, const GptqOptions& options, ThreadPool& pool);

}  // namespace fidelio
