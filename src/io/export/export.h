// Export: a checkpoint written for other programs. Codes are carried over as they are; what a target cannot hold is
// refused, by the linear's name and with formats that fit, before anything is written. The output appears complete or
// not at all.
//
//   target              holds                                          what is rounded
//   compressed-tensors  int2..8 of any group, symmetric or not         nothing: FP16 scales stay FP16, r x s of
//                                                                      8-bit scales becomes FP32 (readers may cast: to
//                                                                      the model dtype, or multiply in FP16)
//   gptq                int2..8, rows and columns multiples of 32      8-bit scales: r x s to FP16
//   gguf                int2..8 (8 symmetric only), groups of 32 k     8-bit scales as above; -s x z of Q4_1,
//                                                                      Q5_1 to FP16
//
// Of a mixture of experts gguf has those of a layer in one tensor, of one type; compressed-tensors each under the family's
// name, all of a layer in one format; gptq none.
//
// FP16 rounding is at most 2^-11 of the value (2^-25 where it is below 2^-14). A quantised embedding or head is decoded
// to the model's 16-bit type for compressed-tensors and gptq, whose readers expect it dense. Grids, fp4 and fp8 have no
// place in any.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio {

// vllm: what its kernels load. compressed-tensors: zero points with 4 and 8 bits only; gptq: 4 and 8 bits, symmetric;
// groups of 32, 64, 128 or the row. Linears that serving fuses (q k v · gate up) have one format: compressed-tensors
// wants it always.
enum class ServingProfile : uint8_t { any, vllm };

// Refuses a model whose export to the target (compressed-tensors, gptq or gguf) would be refused whatever its formats: for
// its family, its inputs or its tokenizer. So it is known before a plan is made for the target.
void check_exports_to(const Checkpoint& source, std::string_view target);

// The command that makes a model whose export to the target is not refused: of the same original, with the same target of
// fidelity where the model's provenance names one.
std::string line_that_fits(const Checkpoint& source, std::string_view target);

// Explains in whole sentences why an export is larger than the model it is made of, and what to do about it.
std::string why_larger(const Checkpoint& source, std::string_view target);

// Each returns a line for everything that was rounded or decoded. `folder` and `file` must not exist.

// "pack-quantized": codes and zero points as dense strings of b-bit fields, least significant bit first, in int32
// words, along the row and along the column respectively; w = (q - z) scale. One config group per (bits, group,
// symmetric).
std::vector<std::string> export_compressed_tensors(const Checkpoint& source, const std::string& folder,
                                                   ServingProfile profile);

// checkpoint_format "gptq_v2" (zero points as they are, not minus one), or "gptq_p" (bit planes, the low bits first)
// where a linear has 5, 6 or 7 bits, for which the older layout has no meaning. Widths other than the commonest are
// "dynamic" rules.
std::vector<std::string> export_gptq(const Checkpoint& source, const std::string& folder, ServingProfile profile);

// One file for llama.cpp: symmetric 2-4 bits as Q4_0, 5 as Q5_0, 6-8 as Q8_0; with zero points 2-4 as Q4_1, 5 as Q5_1,
// 6-7 as Q8_0. `exact`: everything with zero points as Q8_0, which holds q - z without rounding at the price of 8.5
// bits.
std::vector<std::string> export_gguf(const Checkpoint& source, const std::string& file, bool exact);

}  // namespace fidelio
