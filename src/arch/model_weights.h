// This file tells which weights a model has, from its configuration alone: linears, norms, routers, biases, and their
// shapes.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "arch/model_config.h"
#include "arch/stops.h"
#include "arch/weight_names.h"
#include "core/tensor.h"

namespace fidelio {

// Returns every linear of a model in a fixed order: the embedding, q k v o gate up down of each layer (gate up down of
// each of its experts), and the head unless tied. A router is not a linear here: it is small, makes choices, and stays
// as it is.
std::vector<LinearId> linears_of(const ModelConfig& config);
// Returns the linear that gives logits, which is the embedding where the two are tied.
LinearId head_of(const ModelConfig& config);
// Returns the linears of a layer's stop: one for each of its roles, or for each expert and role, those of an expert
// together.
std::vector<LinearId> linears_of(const ModelConfig& config, int layer, const Stop& stop);
// Returns the share of all rows that pass a linear: k / E for an expert's, on average.
double share_of_rows(const ModelConfig& config, LinearId id);
Shape shape_of(const ModelConfig& config, LinearId id);  // Returns (out, in), where `in` counts kept columns twice.
// Returns the number of elements, where every column counts once.
int64_t elements_of(const ModelConfig& config, LinearId id);
// Returns all norms of the model, each with its layer, which is -1 for the final norm.
std::vector<std::pair<int, Norm>> norms_of(const ModelConfig& config);
// Returns the number of values in a norm's weight: d, or for q and k the columns that are normed together.
int64_t norm_size(const ModelConfig& config, Norm which);
// Returns the tensor names of the routers of all layers. The list is empty for a model without experts.
std::vector<std::string> router_names(const ModelConfig& config);
// Returns the tensor in which a model with kept columns stores the order of the input's columns at a stop, for example
// "model.layers.3.o.order".
std::string order_name(int layer, const Stop& stop);
// Tells whether linears of this role have biases.
bool has_bias(const ModelConfig& config, Role role);

}  // namespace fidelio
