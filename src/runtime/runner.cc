#include "runtime/runner.h"

#include "io/hf_config.h"
#include "kernels/cpu/choose.h"
#include "runtime/model.h"
#include "runtime/noise.h"

namespace fidelio {

InputId input_of(Role role) {
  switch (role) {
    case Role::o:
      return InputId::o_in;
    case Role::gate:
    case Role::up:
      return InputId::mlp_in;
    case Role::down:
      return InputId::down_in;
    default:
      return InputId::attn_in;
  }
}

std::shared_ptr<float[]> Runner::allocate(int64_t values) {
  return std::shared_ptr<float[]>(new float[static_cast<size_t>(values)]);
}

PackedLinear Runner::pack_noisy(const LinearWeight& weight, double sigma, uint64_t stream, bool uniform) {
  return pack(noisy_weight(weight, sigma, stream, uniform));
}

std::span<const float> Runner::step(const Batch& batch, Reading reading) {
  begin(batch, reading);
  embed();
  layers(0, config().L);
  return logits(0, static_cast<int64_t>(batch.logit_rows.size()));
}

void Runner::step_and_choose(const Batch& batch, Reading reading, std::span<const ChoiceRule> rules,
                             std::span<Choice> choices) {
  const std::span<const float> logits = step(batch, reading);
  const auto v = static_cast<size_t>(config().v);
  cpu::Chooser chooser;
  for (size_t i = 0; i < rules.size(); ++i) choices[i] = chooser.choose(logits.subspan(i * v, v), rules[i]);
}

AttentionShape attention_shape(const ModelConfig& c) {
  AttentionShape shape;
  shape.layers = c.L;
  shape.heads = c.h;
  shape.kv_heads = c.hk;
  shape.head_dim = c.e;
  shape.window = c.sliding_window;
  shape.norm_eps = c.rms_eps;
  shape.inverse_frequencies = rope_inverse_frequencies(c);
  shape.rope_scale = rope_attention_factor(c);
  return shape;
}

}  // namespace fidelio
