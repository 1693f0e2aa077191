// Between a LinearWeight of vector codes and the latents of train/vectors.h, on the host. Exact both ways: latents that
// nobody moved give the bytes they came from.
#pragma once
#include <span>
#include <vector>

#include "formats/linear_weight.h"
#include "train/vectors.h"

namespace fidelio::train {

// Of every entry of a weight's codebooks those nearest to it, itself first.
struct VectorNeighbours {
  std::vector<float> index;  // (books, entries, neighbours)
  double cell = 0;           // levels between an entry and the nearest other one, in one dimension
};
VectorNeighbours vector_neighbours(const LinearWeight& weight);

struct VectorLatents {
  VectorSizes sizes;
  std::vector<float> latent;                   // (out, in)
  std::vector<float> codebook, neighbours;     // (books, entries, 8), (books, entries, neighbours)
  std::vector<float> book, row, column;        // (out), (out), (in)
  std::vector<float> correction, place, code;  // (corrections, 8), (corrections, 2), (out, vectors)
};

// Latents lie on the way from their entry to where `source` (out, in) is, as far as the entry stays the nearest and at
// most .9 of the way; without a source, on the entry. `near` are the neighbours in the weight's codebooks.
VectorLatents vector_latents(const LinearWeight& weight, std::span<const float> source, const VectorNeighbours& near);
LinearWeight vector_weight_of(const FormatSpec& spec, const VectorLatents& latents);

}  // namespace fidelio::train
