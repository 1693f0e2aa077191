// This file computes the scalars, rotations and shapes of a model as its program has them (build.h).
#include <algorithm>
#include <cmath>

#include "arch/model_weights.h"
#include "core/error.h"
#include "step/build.h"

namespace fidelio {

float query_scale(const ModelConfig& c, int layer) {
  const double columns = head_dim_of(c, layer);
  return c.attention_scale == 0 ? 1 : static_cast<float>(c.attention_scale * std::sqrt(columns));
}

void check_same_shapes(const ModelConfig& draft, const ModelConfig& model) {
  const auto same = [](const char* what, int a, int b) {
    check(a == b, "the draft has {} {}, the model {}: a draft is the same model in another format", a, what, b);
  };
  same("layers", draft.L, model.L);
  same("model dimensions", draft.d, model.d);
  same("ffn dimensions", draft.f, model.f);
  same("heads", draft.h, model.h);
  same("key and value heads", draft.hk, model.hk);
  same("head dimensions", draft.e, model.e);
  same("tokens", draft.v, model.v);
  same("ffn dimensions of a shared expert", draft.shared_f, model.shared_f);
  same("ffn dimensions of layers without experts", draft.dense_f, model.dense_f);
  check(
      state_shape(draft) == state_shape(model),
      "the layers of the draft keep other states than those of the model: a draft is the same model in another format");
  same("values of a token's row for each layer", draft.per_layer, model.per_layer);
  check(attention_shape(draft, 1).layers == attention_shape(model, 1).layers,
        "the layers of the draft keep other keys and values than those of the model: a draft is the same model in "
        "another format");
  same("experts", draft.experts, model.experts);
  same("experts a row", draft.experts_per_row, model.experts_per_row);
  check(draft.rotated == model.rotated,
        "the draft is {}rotated, the model {}: values in their cache are turned alike or not at all",
        draft.rotated ? "" : "not ", model.rotated ? "is" : "is not");
  check(draft.kept_columns <= model.kept_columns,
        "the draft keeps {} columns in 8 bits, the model {}: there is no room for the draft's inputs",
        draft.kept_columns, model.kept_columns);
}

AttentionShape attention_shape(const ModelConfig& c, int64_t context, bool predictor) {
  AttentionShape shape;
  shape.heads = c.h;
  shape.kv_heads = c.hk;
  shape.head_dim = c.e;
  shape.norm_eps = c.rms_eps;
  if (c.blocks.qk_norm != QkNorm::head) shape.query_scale = query_scale(c, 0);  // else the weight of q_norm has it
  shape.query_growth = c.query_growth;
  if (c.query_growth != 0) shape.query_growth_positions = c.rope.original_max_positions;
  std::vector<std::pair<RopeUse, int>> uses;  // the kind of each rotation so far, and the columns of its heads
  std::vector<int> layers = caching_layers(c);
  if (predictor) layers.push_back(kPredictorLayer);
  for (const int layer : layers) {
    const LayerKind kind = kind_of(c, layer);
    const std::pair use(kind.rope, head_dim_of(c, layer));
    const auto found = std::find(uses.begin(), uses.end(), use);
    shape.layers.push_back({kind.window, static_cast<int>(found - uses.begin()), kind.kv_heads, kind.head_dim});
    if (found != uses.end()) continue;
    uses.push_back(use);
    shape.rotations.emplace_back();
    if (kind.rope == RopeUse::none) continue;
    const Rope& rope = kind.rope == RopeUse::local ? *c.local_rope : c.rope;
    const int rotary = c.rotary == 0 ? head_dim_of(c, layer) : c.rotary;
    shape.rotations.back() = {rope_inverse_frequencies(rope, rotary, context),
                              static_cast<float>(rope.attention_factor)};
  }
  return shape;
}

StateShape state_shape(const ModelConfig& c, bool predictor) {
  const DeltaNet& delta = c.delta;
  StateShape shape;
  if (const auto layers = static_cast<int>(delta_layers(c).size()); layers > 0)
    shape = {.layers = layers,
             .heads = delta.value_heads,
             .key_dim = delta.key_dim,
             .value_dim = delta.value_dim,
             .rows = delta.kernel - 1,
             .channels = delta.channels(),
             .carried = 0};
  if (predictor) shape.carried = c.d;
  return shape;
}

Hadamard heads_turn(const ModelConfig& c) { return hadamard_for(c.h, c.e); }
Hadamard gated_turn(const ModelConfig& c) { return hadamard_for(c.f); }

Scalars scalars_of(const ModelConfig& c) {
  Scalars s;
  s.embedding = static_cast<float>(c.embedding_scale / c.residual_scale);
  s.eps = static_cast<float>(static_cast<double>(c.rms_eps) / (c.residual_scale * c.residual_scale));
  s.branch_eps = c.rms_eps;
  s.final_norm = static_cast<float>(1 / c.logit_divisor);
  return s;
}

}  // namespace fidelio
