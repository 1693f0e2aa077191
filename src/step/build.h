// This file makes the program of a step from a model's numbers. It is the one place that knows how families differ.
// What a family adds to a layer becomes operations here, and everything that runs a program knows operations alone.
#pragma once
#include "arch/model_config.h"
#include "step/program.h"

namespace fidelio {

// Returns the program of a model's step. `context` is the longest sequence in positions, which chooses the frequencies
// of LongRoPE once for all sequences.
Program build_program(const ModelConfig& config, int64_t context);
// Returns the program of a model that drafts with its predictor: besides, its steps keep the predictor's keys and
// values and carry what each row led to (Program::follow).
Program build_followed_program(const ModelConfig& config, int64_t context);
// Returns the program of the predictor, whose cache and states are the model's. A batch has one row for each segment:
// the newest token of a sequence, which begins from the state after the rows before it.
Program build_predictor_program(const ModelConfig& config, int64_t context);

// Returns the numbers of a model's attention (and of its predictor's), and of the layers that have it. `context` is as
// for build_program.
AttentionShape attention_shape(const ModelConfig& config, int64_t context, bool predictor = false);

// Returns the shape of what a sequence of this model keeps besides keys and values.
StateShape state_shape(const ModelConfig& config, bool predictor = false);

// Returns the factor on q that gives a layer's scores the model's scale. It is 1 where they are divided by sqrt(e) as
// usual.
float query_scale(const ModelConfig& config, int layer);

// Scalars are a model's scalars as its program has them. Nothing multiplies the outputs of attention and the MLP: the
// stream is kept divided by m = residual_scale instead. With y = x / m, the sum x' = x + m f(norm(x)) becomes y' = y
// + f(norm(y)). The norm's epsilon is divided by m^2, since a norm does not see the size of its input. The divisor of
// logits is part of the final norm's weight.
struct Scalars {
  float embedding = 1;   // the factor on a row of the embedding
  float eps = 0;         // the epsilon of norms of the stream
  float branch_eps = 0;  // the epsilon of norms of the outputs that are added to the stream
  float final_norm = 1;  // the factor on the final norm's weight
};
Scalars scalars_of(const ModelConfig& config);

// These return the Hadamard matrices of a rotated model (ModelConfig::rotated). The first mixes the heads of
// attention's output, the second the f columns of the gated values.
Hadamard heads_turn(const ModelConfig& config);
Hadamard gated_turn(const ModelConfig& config);

// A model with embeddings for each layer (ModelConfig::per_layer) begins with a value `per_layer`, which has a part for
// each layer. It is the sum of a row of a table, which the token chooses, and of a product of the token's embedding,
// both times sqrt(1/2), the latter normed part by part. The two factors are those of the row and of the norm.

// Throws Error, naming the difference, unless one set of matrices and one cache serve both models.
void check_same_shapes(const ModelConfig& draft, const ModelConfig& model);

}  // namespace fidelio
