// What weights a model has, by its configuration alone: linears, norms, routers, biases, and their shapes.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "arch/model_config.h"
#include "arch/stops.h"
#include "arch/weight_names.h"
#include "core/tensor.h"

namespace fidelio {

// Every linear of a model in a fixed order: the embedding, q k v o gate up down of each layer (gate up down of each of
// its experts), and the head unless tied. A router is not one of them: it is small, chooses, and stays as it is.
std::vector<LinearId> linears_of(const ModelConfig& config);
// The linear that gives logits: the embedding, where both are one.
LinearId head_of(const ModelConfig& config);
// Whether a stop's linears are the experts'.
bool of_experts(const ModelConfig& config, const Stop& stop);
// Those of a layer's stop: one for each of its roles, or for each expert and role, an expert's together.
std::vector<LinearId> linears_of(const ModelConfig& config, int layer, const Stop& stop);
// Which part of all rows passes a linear: k / E of an expert's, on average.
double share_of_rows(const ModelConfig& config, LinearId id);
Shape shape_of(const ModelConfig& config, LinearId id);                 // (out, in), columns kept twice included
int64_t elements_of(const ModelConfig& config, LinearId id);            // with every column once
std::vector<std::pair<int, Norm>> norms_of(const ModelConfig& config);  // and every norm
int64_t norm_size(const ModelConfig& config, Norm which);
std::vector<std::string> router_names(const ModelConfig& config);  // of all layers; none where there are no experts
// Where a model with kept columns says which columns of an input a stop's weights have in turn: "model.layers.3.o.order".
std::string order_name(int layer, const Stop& stop);
bool has_bias(const ModelConfig& config, Role role);

}  // namespace fidelio
