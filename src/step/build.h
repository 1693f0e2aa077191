// build: from a model's numbers to the program of its step. This is the one place that knows how families differ; what a
// family adds to a layer becomes operations here, and everything that runs a program knows operations alone.
#pragma once
#include "arch/model_config.h"
#include "step/program.h"

namespace fidelio {

// Returns the program of a model's step. `context` is the longest sequence in positions, which chooses the frequencies
// of LongRoPE once for all sequences.
Program build_program(const ModelConfig& config, int64_t context);

AttentionShape attention_shape(const ModelConfig& config, int64_t context);

// Returns the factor on q that gives scores the model's scale. It is 1 where scores are divided by sqrt(e) as usual.
float query_scale(const ModelConfig& config);

// A model's scalars as its program has them. Nothing multiplies the outputs of attention and the MLP: the stream is kept
// divided by residual_scale m instead. With y = x / m, x' = x + m f(norm(x)) is y' = y + f(norm(y)), where the norm's
// epsilon is divided by m^2, since a norm does not see the size of its input. The divisor of logits is in the final
// norm's weight.
struct Scalars {
  float embedding = 1;   // the factor on a row of the table
  float eps = 0;         // of norms of the stream
  float branch_eps = 0;  // of norms of the outputs that are added to it
  float final_norm = 1;  // the factor on that norm's weight
};
Scalars scalars_of(const ModelConfig& config);

// The Hadamard matrices of a rotated model (ModelConfig::rotated): attention's output is turned among its heads, the
// gate's over its f columns.
Hadamard heads_turn(const ModelConfig& config);
Hadamard gated_turn(const ModelConfig& config);

// Throws Error, naming the difference, unless one set of matrices and one cache serve both models.
void check_same_shapes(const ModelConfig& draft, const ModelConfig& model);

}  // namespace fidelio
