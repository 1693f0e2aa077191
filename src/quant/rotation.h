// QuaRot (Ashkboos et al. 2024): a model with the same function whose activations have no outliers, so that few bits
// hold them.
//
//   stream    x' = Q x, Q a Hadamard matrix with random signs. Norms have no weights: what they had is in the linears that
//             follow, so that a norm of x' is Q times that of x. Embedding rows E Q^T; q, k, v, gate, up and head W Q^T;
//             o and down Q W, as their biases.
//   o         v's rows are turned within each head (H_e), before the cache; the heads among each other (H_h) when
//             attention is done, by the forward (ModelConfig::rotated). o's columns hold both.
//   down      its input is turned by the forward (H_f), and so are its columns.
//
// Everything is made in double from the weights as stored. Keys are not turned: that would serve a cache of few bits alone.
// Where a width has no Hadamard matrix at hand (core/hadamard.h) its blocks are turned, down to nothing (an odd number of
// heads).
#pragma once
#include <cstdint>
#include <string>

#include "arch/model_config.h"
#include "io/model_source.h"

namespace fidelio {

// Throws Error where a model cannot be turned so: norms behind blocks (OLMo 2 and 3, Gemma 3) act on what is added to the
// stream, weight by weight; a model that is rotated already.
void check_can_rotate(const ModelConfig& config);

// The model at `path`, rotated: every linear F32, made anew whenever it is read; norms of ones; an untied head. `seed`
// draws the signs.
ModelSource open_rotated(const std::string& path, uint64_t seed);

}  // namespace fidelio
