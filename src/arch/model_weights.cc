#include "arch/model_weights.h"

#include <fmt/format.h>

namespace fidelio {

int64_t norm_size(const ModelConfig& c, int layer, Norm which) {
  if (which == Norm::delta) return c.delta.value_dim;
  if (which == Norm::sinks) return c.h;
  if (which == Norm::scalar) return 1;
  if (which == Norm::per_layer) return c.per_layer;
  if (which == Norm::v) return head_dim_of(c, layer);
  if (which != Norm::q && which != Norm::k) return c.d;
  if (c.blocks.qk_norm == QkNorm::head) return head_dim_of(c, layer);
  return int64_t{which == Norm::q ? c.h : c.hk} * c.e;
}

namespace {

// Appends the norms that Gemma 4 has in a layer besides.
void append_further_norms(const ModelConfig& c, int layer, std::vector<std::pair<int, Norm>>& norms) {
  if (has_experts(c, layer) && c.blocks.experts == ExpertFiles::beside)
    for (const Norm norm : {Norm::router, Norm::post_dense, Norm::experts, Norm::post_experts})
      norms.emplace_back(layer, norm);
  if (c.per_layer > 0) norms.emplace_back(layer, Norm::post_per_layer);
  if (c.blocks.layer_scalar) norms.emplace_back(layer, Norm::scalar);
}

}  // namespace

std::vector<std::pair<int, Norm>> norms_of(const ModelConfig& c) {
  std::vector<std::pair<int, Norm>> norms;
  for (int i = 0; i < c.L; ++i) {
    if (c.blocks.norm_before) norms.insert(norms.end(), {{i, Norm::attn}, {i, Norm::mlp}});
    if (c.blocks.norm_after) norms.insert(norms.end(), {{i, Norm::post_attn}, {i, Norm::post_mlp}});
    if (has_delta_net(c, i))
      norms.emplace_back(i, Norm::delta);
    else if (c.blocks.qk_norm != QkNorm::none) {
      norms.emplace_back(i, Norm::q);
      if (keeps_keys(c, i)) norms.emplace_back(i, Norm::k);
    }
    if (c.blocks.sinks && !has_delta_net(c, i)) norms.emplace_back(i, Norm::sinks);
    append_further_norms(c, i, norms);
  }
  norms.emplace_back(-1, Norm::final);
  if (c.per_layer > 0) norms.emplace_back(-1, Norm::per_layer);
  return norms;
}

std::vector<std::pair<int, Norm>> predictor_norms_of(const ModelConfig& c) {
  if (!c.predictor) return {};
  constexpr int kLayer = kPredictorLayer;
  std::vector<std::pair<int, Norm>> norms = {
      {-1, Norm::token}, {-1, Norm::before}, {-1, Norm::predicted}, {kLayer, Norm::attn}, {kLayer, Norm::mlp}};
  if (c.blocks.qk_norm != QkNorm::none) norms.insert(norms.end(), {{kLayer, Norm::q}, {kLayer, Norm::k}});
  return norms;
}

bool has_bias(const ModelConfig& c, Role role) {
  switch (role) {
    case Role::q:
    case Role::k:
    case Role::v:
      return c.qkv_bias;
    case Role::o:
      return c.o_bias;
    case Role::gate:
    case Role::up:
    case Role::down:
      return c.mlp_bias;
    default:
      return false;
  }
}

namespace {

// Tells whether a layer has a shared expert with a gate of its own.
bool has_shared_router(const ModelConfig& c, int layer) {
  return has_experts(c, layer) && c.shared_f > 0 && c.blocks.shared_gate;
}

// Appends the linears of a layer by its stops, and then those of each of its experts.
void append_layer(const ModelConfig& c, int layer, std::vector<LinearId>& ids) {
  for (const Stop& stop : stops_of(c, layer))
    if (!stop.routed)
      for (Role role : stop.roles) ids.push_back({layer, role});
  for (int expert = 0; has_experts(c, layer) && expert < c.experts; ++expert)  // all of an expert's linears together
    for (const Stop& stop : stops_of(c, layer))
      if (stop.routed)
        for (Role role : stop.roles) ids.push_back({layer, role, expert});
}

}  // namespace

std::vector<LinearId> linears_of(const ModelConfig& c) {
  std::vector<LinearId> ids = {{-1, Role::embedding}};
  if (c.per_layer > 0) ids.push_back({-1, Role::per_layer_table});
  for (int i = 0; i < c.L; ++i) append_layer(c, i, ids);
  if (!c.tie_embeddings) ids.push_back({-1, Role::head});
  return ids;
}

std::vector<LinearId> predictor_linears_of(const ModelConfig& c) {
  if (!c.predictor) return {};
  std::vector<LinearId> ids = {{kPredictorLayer, Role::join}};
  append_layer(c, kPredictorLayer, ids);
  if (has_shared_router(c, kPredictorLayer)) ids.push_back({kPredictorLayer, Role::shared_router});
  return ids;
}

std::vector<LinearId> fixed_linears_of(const ModelConfig& c) {
  std::vector<LinearId> ids;
  if (c.per_layer > 0) ids.push_back({-1, Role::per_layer_model});
  for (int i = 0; i < c.L; ++i) {
    if (has_delta_net(c, i)) ids.insert(ids.end(), {{i, Role::delta_b}, {i, Role::delta_a}});
    if (has_shared_router(c, i)) ids.push_back({i, Role::shared_router});
  }
  return ids;
}

std::vector<LinearId> kept_linears_of(const ModelConfig& c) {
  std::vector<LinearId> ids = fixed_linears_of(c);
  const std::vector<LinearId> predictor = predictor_linears_of(c);
  ids.insert(ids.end(), predictor.begin(), predictor.end());
  return ids;
}

LinearId head_of(const ModelConfig& config) { return {-1, config.tie_embeddings ? Role::embedding : Role::head}; }

std::vector<LinearId> linears_of(const ModelConfig& c, int layer, const Stop& stop) {
  std::vector<LinearId> ids;
  for (int expert = stop.routed ? 0 : -1; expert < (stop.routed ? c.experts : 0); ++expert)
    for (Role role : stop.roles) ids.push_back({layer, role, expert});
  return ids;
}

double share_of_rows(const ModelConfig& c, LinearId id) {
  return id.expert < 0 ? 1 : static_cast<double>(c.experts_per_row) / c.experts;
}

std::vector<std::string> router_names(const ModelConfig& c) {
  std::vector<std::string> names;
  for (const int layer : routed_layers(c)) names.push_back(router_name(c, layer));
  return names;
}

std::vector<RouterTensor> router_tensors(const ModelConfig& c) {
  std::vector<RouterTensor> tensors;
  if (c.router.bias) tensors.push_back(RouterTensor::bias);
  if (c.router.corrected) tensors.push_back(RouterTensor::correction);
  if (c.router.scaled) tensors.push_back(RouterTensor::scale);
  return tensors;
}

std::string router_name(const ModelConfig& c, int layer, RouterTensor which) {
  const std::string weight = router_name(c, layer), module = weight.substr(0, weight.rfind('.'));
  switch (which) {
    case RouterTensor::bias:
      return module + ".bias";
    case RouterTensor::correction:
      // Mixtral's descendants keep it beside the router.
      if (c.blocks.experts == ExpertFiles::lettered)
        return module.substr(0, module.rfind('.')) + ".e_score_correction_bias";
      return module + ".e_score_correction_bias";
    case RouterTensor::scale:
      break;
  }
  return module.substr(0, module.rfind('.')) + ".per_expert_scale";
}

std::vector<std::pair<std::string, Shape>> tensors_of_routers(const ModelConfig& c) {
  std::vector<std::pair<std::string, Shape>> tensors;
  for (const int layer : routed_layers(c)) {
    tensors.emplace_back(router_name(c, layer), Shape{c.experts, c.d});
    for (const RouterTensor which : router_tensors(c))
      tensors.emplace_back(router_name(c, layer, which), Shape{c.experts});
  }
  return tensors;
}

std::vector<int> routed_layers(const ModelConfig& c) {
  std::vector<int> layers;
  for (int i = 0; i < c.L; ++i)
    if (has_experts(c, i)) layers.push_back(i);
  return layers;
}

std::vector<int> delta_layers(const ModelConfig& c) {
  std::vector<int> layers;
  for (int i = 0; i < c.L; ++i)
    if (has_delta_net(c, i)) layers.push_back(i);
  return layers;
}

std::vector<int> caching_layers(const ModelConfig& c) {
  std::vector<int> layers;
  for (int i = 0; i < c.L; ++i)
    if (keeps_keys(c, i)) layers.push_back(i);
  return layers;
}

int64_t cached_values(const ModelConfig& c) {
  int64_t values = 0;
  for (const int layer : caching_layers(c)) values += int64_t{kv_heads_of(c, layer)} * head_dim_of(c, layer);
  return values;
}

std::string delta_name(int layer, DeltaTensor which) {
  constexpr std::string_view kNames[] = {"conv1d.weight", "A_log", "dt_bias"};
  return fmt::format("model.layers.{}.linear_attn.{}", layer, kNames[static_cast<size_t>(which)]);
}

Shape delta_shape(const ModelConfig& c, DeltaTensor which) {
  if (which == DeltaTensor::convolution) return {c.delta.channels(), 1, int64_t{c.delta.kernel}};
  return {int64_t{c.delta.value_heads}};
}

Shape shape_of(const ModelConfig& c, LinearId id) {
  const bool outer = id.layer == -1;
  const int64_t d = c.d, e = outer ? c.e : head_dim_of(c, id.layer), q = c.h * e,
                kv = outer ? 0 : kv_heads_of(c, id.layer) * e, twice = c.kept_columns,
                f = outer ? 0 : ffn_columns(c, id.layer), shared = c.shared_f, own = c.per_layer;
  switch (id.role) {
    case Role::q:
      return {c.blocks.attention_gate ? 2 * q : q, d + twice};
    case Role::k:
    case Role::v:
      return {kv, d + twice};
    case Role::o:
      return {d, q + twice};
    case Role::gate:
    case Role::up:
      return {f, d + twice};
    case Role::down:
      return {d, f + twice};
    case Role::delta_qkv:
      return {c.delta.channels(), d};
    case Role::delta_z:
      return {c.delta.values(), d};
    case Role::delta_out:
      return {d, c.delta.values()};
    case Role::delta_b:
    case Role::delta_a:
      return {int64_t{c.delta.value_heads}, d};
    case Role::shared_gate:
    case Role::shared_up:
      return {shared, d};
    case Role::shared_down:
      return {d, shared};
    case Role::shared_router:
      return {1, d};
    case Role::join:
      return {d, 2 * d};
    case Role::per_layer_gate:
      return {own, d};
    case Role::per_layer_out:
      return {d, own};
    case Role::per_layer_model:
      return {c.L * own, d};
    case Role::per_layer_table:
      return {int64_t{c.v}, c.L * own};
    case Role::embedding:
    case Role::head:
      break;
  }
  return {int64_t{c.v}, d};
}

int64_t elements_of(const ModelConfig& c, LinearId id) {
  ModelConfig once = c;
  once.kept_columns = 0;
  return shape_of(once, id).elements();
}

std::string order_name(int layer, const Stop& stop) { return fmt::format("model.{}.order", stop_name(layer, stop)); }

}  // namespace fidelio
