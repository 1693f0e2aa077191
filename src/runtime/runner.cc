#include "runtime/runner.h"

#include <algorithm>

#include "kernels/cpu/choice/choose.h"
#include "runtime/execution/batch_part.h"
#include "runtime/noise.h"

namespace fidelio {

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

void Runner::enqueue(const Batch& batch, Reading reading, std::span<const int32_t> from,
                     std::span<const ChoiceRule> rules, std::vector<Choice>& chosen) {
  FedBatch fed;
  feed_known(batch, from, chosen, fed);
  const size_t first = chosen.size();
  chosen.resize(first + rules.size());
  step_and_choose(fed.batch, reading, rules, std::span(chosen).subspan(first));
}

}  // namespace fidelio
