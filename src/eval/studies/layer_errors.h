// This file measures how much of what each layer computes a candidate gets wrong, so that a damaged layer can be named.
//
//   source     s0 | layer 0 | s1 | layer 1 | s2 ..      the residual stream in front of and behind every layer
//   candidate  s0 | layer 0 | x1                        its own layer, given the source's stream
//                        s1 | layer 1 | x2
//
// The error of layer i is |x(i+1) - s(i+1)| / |s(i+1) - s(i)|, over all positions: the share of what the layer adds to
// the stream that is wrong. As every layer is given the source's stream, an error does not pass on to later layers.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/runner.h"

namespace fidelio {

struct LayerErrors {
  double embedding = 0;        // |x0 - s0| / |s0|
  std::vector<double> layers;  // (L)
  // This is the same share of the logits, each row of which is taken relative to its mean, as that changes no
  // probability.
  double head = 0;
};

// Runs both models over the sequences, each of which must fit a batch of either. The models must have the same number
// of layers, stream and vocabulary.
LayerErrors measure_layer_errors(Runner& source, Runner& candidate, const std::vector<std::vector<int32_t>>& sequences,
                                 const Reading& reading);

// Returns the layers whose errors stand out: they are above .1 and above six times the median of all layers, as no two
// formats of neighbouring widths make them, or more than .7 and above twice the median.
std::vector<int> layers_that_stand_out(const LayerErrors& errors);
// Tells the same of the embedding and of the head, which are compared with the median of the layers.
bool embedding_stands_out(const LayerErrors& errors);
bool head_stands_out(const LayerErrors& errors);
double median_of_layers(const LayerErrors& errors);

// The JSON has the form {embedding, layers: [L numbers], head, median, stand_out: [layers]}.
nlohmann::json to_json(const LayerErrors& errors);

}  // namespace fidelio
