// This file tells which weights a model has, from its configuration alone: linears, norms, routers, biases, and their
// shapes.
#pragma once
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "arch/model_config.h"
#include "arch/stops.h"
#include "arch/weight_names.h"
#include "core/tensor.h"

namespace fidelio {

// Returns every linear of a model that may be quantised, in a fixed order: the embedding, those of each layer by its
// stops (then those of each of its experts), and the head unless tied. A router is not a linear here: it is small,
// makes choices, and stays as it is.
std::vector<LinearId> linears_of(const ModelConfig& config);
// Returns the linears that are never quantised, layer by layer: those of the fixed roles.
std::vector<LinearId> fixed_linears_of(const ModelConfig& config);
// Returns the linears of the predictor of a model that has one: `join` first, which reads a token and what the row
// before led to, and then those of a layer. They are none of linears_of().
std::vector<LinearId> predictor_linears_of(const ModelConfig& config);
// Returns all linears that a written model has as its source has them: the fixed ones, and those of its predictor.
std::vector<LinearId> kept_linears_of(const ModelConfig& config);
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
// Returns all norms of the model and its sinks, each with its layer, which is -1 for the final norm.
std::vector<std::pair<int, Norm>> norms_of(const ModelConfig& config);
// Returns the norms of the predictor, none of which norms_of() has.
std::vector<std::pair<int, Norm>> predictor_norms_of(const ModelConfig& config);
// Returns the number of values in a norm's weight: d, for q and k the columns that are normed together, for sinks h.
int64_t norm_size(const ModelConfig& config, int layer, Norm which);
// Tells whether files hold a norm's weight. Values are normed without one, which is the same as with ones.
inline bool has_weight(Norm which) { return which != Norm::v; }
// Returns the layers whose MLP is a mixture of experts, and the tensor names of their routers.
std::vector<int> routed_layers(const ModelConfig& config);
std::vector<std::string> router_names(const ModelConfig& config);
// A RouterTensor is a vector (E) that a router has besides its matrix: the bias of its logits, the correction of scores
// for the choice, and the factors on shares (Router in model_config.h).
enum class RouterTensor : uint8_t { bias, correction, scale };
std::vector<RouterTensor> router_tensors(const ModelConfig& config);  // those that its routers have
std::string router_name(const ModelConfig& config, int layer, RouterTensor which);
// Returns all tensors of the routers of the model's layers, matrices and vectors, with their shapes.
std::vector<std::pair<std::string, Shape>> tensors_of_routers(const ModelConfig& config);
// A DeltaTensor is a tensor of a delta net that no linear reads: the convolution (channels, 1, kernel), the logarithm
// of the decay's rate (value_heads), and the bias of its step (value_heads).
enum class DeltaTensor : uint8_t { convolution, log_rate, step_bias };
inline constexpr DeltaTensor kDeltaTensors[] = {DeltaTensor::convolution, DeltaTensor::log_rate,
                                                DeltaTensor::step_bias};
std::string delta_name(int layer, DeltaTensor which);
Shape delta_shape(const ModelConfig& config, DeltaTensor which);
// Returns the layers with a delta net, and those that keep keys and values, in their order.
std::vector<int> delta_layers(const ModelConfig& config);
std::vector<int> caching_layers(const ModelConfig& config);
// Returns the values that all layers keep for a position: its keys, or as many for its values.
int64_t cached_values(const ModelConfig& config);
// Returns the tensor in which a model with kept columns stores the order of the input's columns at a stop, for example
// "model.layers.3.o.order".
std::string order_name(int layer, const Stop& stop);
// Tells whether linears of this role have biases.
bool has_bias(const ModelConfig& config, Role role);

}  // namespace fidelio
