// What a model has beside its linears, norms and routers, from a checkpoint onto a backend. Included by runner_impl.h.
#pragma once
#include <cmath>

#include "arch/weight_names.h"
#include "formats/finite.h"
#include "runtime/model.h"

namespace fidelio {

template <Backend B>
typename B::Matrix load_norm(B& b, const ModelConfig& config, const Checkpoint& checkpoint, int layer, Norm which,
                             float factor = 1) {
  std::vector<float> values = checkpoint.norm(layer, which);
  for (float x : values)
    check(std::isfinite(x), "{}: {} holds {}: the file is damaged", checkpoint.folder(),
          norm_name(config, layer, which), x);
  for (float& value : values) value *= factor;
  typename B::Matrix m = b.allocate(1, static_cast<int64_t>(values.size()));
  b.upload(values, m);
  return m;
}

template <Backend B>
Turn<B> load_turn(B& b, Hadamard how) {
  Turn<B> turn{std::move(how), {}};
  if (turn.how.core == 1) return turn;
  const std::vector<float> signs(turn.how.signs.begin(), turn.how.signs.end());
  turn.signs = b.allocate(turn.how.core, turn.how.core);
  b.upload(signs, turn.signs);
  return turn;
}

// Of a model whose layers are there.
template <Backend B>
void load_norms(B& b, Model<B>& model, const Checkpoint& checkpoint) {
  const ModelConfig& c = model.config;
  const auto norm = [&](int layer, Norm which, float factor = 1) {
    return load_norm(b, c, checkpoint, layer, which, factor);
  };
  for (int i = 0; i < c.L; ++i) {
    Layer<B>& layer = model.layers[static_cast<size_t>(i)];
    if (c.blocks.norm_before) {
      layer.attn_norm = norm(i, Norm::attn);
      layer.mlp_norm = norm(i, Norm::mlp);
    }
    if (c.blocks.norm_after) {
      layer.post_attn_norm = norm(i, Norm::post_attn);
      layer.post_mlp_norm = norm(i, Norm::post_mlp);
    }
    if (c.blocks.qk_norm == QkNorm::none) continue;
    const bool by_head = c.blocks.qk_norm == QkNorm::head;
    layer.q_norm = norm(i, Norm::q, by_head ? query_scale(c) : 1);
    layer.k_norm = norm(i, Norm::k);
  }
  for (int i = 0; c.kept_columns > 0 && i < c.L; ++i)
    for (const Stop& stop : kStops)
      model.layers[static_cast<size_t>(i)].orders[static_cast<size_t>(stop.input)] =
          b.make_order(checkpoint.order(i, stop), c.kept_columns);
  for (int i = 0; c.experts > 0 && i < c.L; ++i) {
    const LinearWeight router = checkpoint.router(i);
    check_finite(router, fmt::format("{}: {}", checkpoint.folder(), router_name(c, i)));
    model.layers[static_cast<size_t>(i)].router = std::make_shared<const typename B::Linear>(b.pack(router));
  }
  model.final_norm = norm(-1, Norm::final, model.scalars.final_norm);
  if (c.rotated) {
    model.attended = load_turn(b, heads_turn(c));
    model.gated = load_turn(b, gated_turn(c));
  }
}

}  // namespace fidelio
