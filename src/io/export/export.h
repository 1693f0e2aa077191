// This file exports a checkpoint for other programs. Codes are carried over as they are. Weights that a target cannot
// hold are refused before anything is written, with the name of the linear and formats that fit. The output appears
// complete or not at all.
//
//   target              holds                                          what is rounded
//   compressed-tensors  int2..8 of any group, symmetric or not         nothing: FP16 scales stay FP16, r x s of
//                                                                      8-bit scales becomes FP32 (readers may cast: to
//                                                                      the model dtype, or multiply in FP16)
//   gptq                int2..8, rows and columns multiples of 32      8-bit scales: r x s to FP16
//   gguf                int2..8 (8 symmetric only), groups of 32 k     8-bit scales as above; -s x z of Q4_1,
//                                                                      Q5_1 to FP16
//
// For a mixture of experts, gguf stores the experts of a layer in one tensor of one type, compressed-tensors stores
// each under the family's name with all of a layer in one format, and gptq refuses them.
//
// FP16 rounding is at most 2^-11 of the value (2^-25 where it is below 2^-14). A quantised embedding or head is decoded
// to the model's 16-bit type for compressed-tensors and gptq, whose readers expect it dense. No target holds grids, fp4
// or fp8.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace fidelio {

// The profile vllm allows only formats that vLLM's kernels load: for compressed-tensors zero points with 4 and 8 bits
// only, for gptq 4 and 8 bits, symmetric, in groups of 32, 64, 128 or the row. Linears that serving fuses (q k v · gate
// up) must have one format; compressed-tensors always needs that.
enum class ServingProfile : uint8_t { any, vllm };

// Refuses a model whose export to the target (compressed-tensors, gptq or gguf) would be refused whatever its formats:
// for its family, its inputs or its tokenizer. Callers thus learn it before a plan is made for the target.
void check_exports_to(const Checkpoint& source, std::string_view target);

// Returns the command that makes a model whose export to the target succeeds. It names the same original, with the same
// target fidelity where the provenance of the model has one.
std::string line_that_fits(const Checkpoint& source, std::string_view target);

// Explains in whole sentences why an export is larger than the model it is made from, and what to do about it.
std::string why_larger(const Checkpoint& source, std::string_view target);

// Each export returns a line for everything that was rounded or decoded. `folder` and `file` must not exist.

// Writes "pack-quantized": codes and zero points are dense strings of b-bit fields, least significant bit first, in
// int32 words, along the row and along the column respectively, with w = (q - z) scale. There is one config group per
// (bits, group, symmetric).
std::vector<std::string> export_compressed_tensors(const Checkpoint& source, const std::string& folder,
                                                   ServingProfile profile);

// Writes checkpoint_format "gptq_v2" (zero points as they are, not minus one), or "gptq_p" (bit planes, the low bits
// first) where a linear has 5, 6 or 7 bits, for which the older layout has no meaning. Widths other than the commonest
// are "dynamic" rules.
std::vector<std::string> export_gptq(const Checkpoint& source, const std::string& folder, ServingProfile profile);

// Writes one file for llama.cpp. Symmetric codes of 2-4 bits become Q4_0, of 5 bits Q5_0, of 6-8 bits Q8_0; codes with
// zero points become Q4_1 (2-4 bits), Q5_1 (5) or Q8_0 (6-7). With `exact`, all codes with zero points become Q8_0,
// which holds q - z without rounding at the price of 8.5 bits.
std::vector<std::string> export_gguf(const Checkpoint& source, const std::string& file, bool exact);

}  // namespace fidelio
