// This file implements QuaRot (Ashkboos et al. 2024): it makes a model with the same function whose activations have
// no outliers, so that few bits can hold them.
//
//   stream    x' = Q x, where Q is a Hadamard matrix with random signs. Norms have no weights; theirs are folded into
//             the linears that follow, so that a norm of x' is Q times that of x. Embedding rows become E Q^T; q, k,
//             v, gate, up and head W Q^T; o and down Q W, and their biases likewise.
//   o         v's rows are transformed within each head (H_e), before the cache. The forward pass transforms across the
//             heads (H_h) when attention is done (ModelConfig::rotated). o's columns include both.
//   down      the forward pass transforms its input (H_f), and its columns are transformed too.
//
// Everything is computed in double from the weights as stored. Keys are not transformed, since that would only help a
// cache of few bits. If a width has no Hadamard matrix at hand (core/hadamard.h), blocks of it are transformed, and
// possibly nothing (an odd number of heads).
#pragma once
#include <cstdint>
#include <string>

#include "arch/model_config.h"
#include "io/model_source.h"

namespace fidelio {

// Throws Error if a model cannot be transformed so. That is the case for norms behind blocks (OLMo 2 and 3, Gemma 3),
// because they act on what is added to the stream, weight by weight, and for a model that is rotated already.
void check_can_rotate(const ModelConfig& config);

// Opens the model at `path`, rotated. Every linear is F32 and computed anew whenever it is read; norms are ones; the
// head is untied. `seed` draws the signs.
ModelSource open_rotated(const std::string& path, uint64_t seed);

}  // namespace fidelio
