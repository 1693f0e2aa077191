// This file converts between a LinearWeight of vector codes and the latents of train/vectors.h, on the host. It is
// exact both ways: latents that did not move give the bytes that they came from.
#pragma once
#include <span>
#include <vector>

#include "formats/linear_weight.h"
#include "train/vectors.h"

namespace fidelio::train {

// VectorNeighbours lists, for every entry of a weight's codebooks, the entries nearest to it, with itself first.
struct VectorNeighbours {
  std::vector<float> index;  // (books, entries, neighbours)
  double cell = 0;           // distance in levels between an entry and the nearest other one, in one dimension
};
VectorNeighbours vector_neighbours(const LinearWeight& weight);

struct VectorLatents {
  VectorSizes sizes;
  std::vector<float> latent;                   // (out, in)
  std::vector<float> codebook, neighbours;     // (books, entries, 8), (books, entries, neighbours)
  std::vector<float> book, row, column;        // (out), (out), (in)
  std::vector<float> correction, place, code;  // (corrections, 8), (corrections, 2), (out, vectors)
};

// Returns latents. Each lies on the way from its entry to where `source` (out, in) is, as far as the entry stays the
// nearest and at most .9 of the way. Without a source it lies on the entry. `near` are the neighbours in the weight's
// codebooks.
VectorLatents vector_latents(const LinearWeight& weight, std::span<const float> source, const VectorNeighbours& near);
LinearWeight vector_weight_of(const FormatSpec& spec, const VectorLatents& latents);

}  // namespace fidelio::train
