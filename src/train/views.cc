#include "train/views.h"

#include "arch/model_weights.h"

namespace fidelio::train {

void check_known(const ModelConfig& c, bool gpu) {
  const Blocks& b = c.blocks;
  const auto only = [&](bool known, const char* what) {
    check(known, "tuning does not know {}, which {} has; it knows the layers of Llama, Mistral, Qwen and SmolLM", what,
          name_of(c.architecture));
  };
  const auto only_on_cpu = [&](bool known, const char* what) {
    check(known || !gpu, "a GPU does not tune {} yet, which {} has; a CPU does: leave --device out", what,
          name_of(c.architecture));
  };
  check(c.kept_columns == 0, "a model of quantize --atom is not tuned: tune the one that it was made of");
  check(!c.rotated, "a rotated model is not tuned: rotate the tuned one (quantize --rotate)");
  only(c.experts == 0, "a mixture of experts");
  only(b.norm_before && !b.norm_after, "norms behind blocks");
  only(b.qk_norm != QkNorm::width, "a norm over all heads together");
  only(b.activation == Activation::silu, "a gate of GELU");
  only(!c.local_rope, "layers with ropes of their own");
  only(c.rope.type != RopeType::longrope, "frequencies that depend on the length of a sequence");
  only(c.embedding_scale == 1 && c.attention_scale == 0 && c.residual_scale == 1 && c.logit_divisor == 1 &&
           c.query_growth == 0,
       "scalars in embeddings, attention, blocks or logits");
  only_on_cpu(delta_layers(c).empty(), "gated delta nets");
  only_on_cpu(!b.attention_gate, "a gate on attention's output");
  only_on_cpu(rotary_columns(c) == c.e, "ropes of some columns");
}

AttentionSizes attention_sizes(const ModelConfig& c, int layer) {
  const LayerKind kind = kind_of(c, layer);
  std::vector<float> frequencies;
  if (kind.rope != RopeUse::none) frequencies = rope_inverse_frequencies(c);
  return {c.h, c.hk, c.e, kind.window, std::move(frequencies), static_cast<float>(c.rope.attention_factor)};
}

bool has_mixer(const ModelConfig& c, Mixer mixer) {
  const auto deltas = static_cast<int>(delta_layers(c).size());
  return mixer == Mixer::delta_net ? deltas > 0 : deltas < c.L;
}

}  // namespace fidelio::train
