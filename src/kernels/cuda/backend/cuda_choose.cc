// Choosing tokens from logits on the device: rules go there, choices come back, logits stay.
#include <algorithm>

#include "kernels/cuda/backend/cuda_state.h"

namespace fidelio {
namespace {

cuda::DeviceRule device_rule(const ChoiceRule& r, int32_t first_change) {
  return {r.repetition, r.top_p,
          r.random,     r.top_k,
          r.scale,      r.farthest,
          first_change, static_cast<int32_t>(r.changes.size()),
          r.greedy,     r.wants_probability};
}

// What goes to the device in one copy: rules, then changes.
void gather_rules(std::span<const ChoiceRule> rules, cuda::ChoiceScratch::Pinned& to) {
  size_t changes = 0;
  for (const ChoiceRule& rule : rules) changes += rule.changes.size();
  to.resize(rules.size() * sizeof(cuda::DeviceRule) + changes * sizeof(cuda::DeviceChange));
  auto* const rule_at = reinterpret_cast<cuda::DeviceRule*>(to.data());
  auto* const change_at = reinterpret_cast<cuda::DeviceChange*>(rule_at + rules.size());
  int32_t next = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    rule_at[i] = device_rule(rules[i], next);
    for (const LogitChange& c : rules[i].changes) change_at[next++] = {c.id, c.repeated, c.less, c.more};
  }
}

}  // namespace

void Cuda::choose(const Matrix& logits, std::span<const ChoiceRule> rules, std::span<Choice> choices) {
  assert(static_cast<int64_t>(rules.size()) <= logits.rows && choices.size() >= rules.size());
  if (rules.empty()) return;
  State& s = *state_;
  s.flush();
  cuda::ChoiceScratch& c = s.choice;
  const auto n = static_cast<int64_t>(rules.size());
  gather_rules(rules, c.sent);
  const auto sent = static_cast<int64_t>(c.sent.size()), made = n * static_cast<int64_t>(sizeof(cuda::DeviceChoice));
  const int64_t changes =
      (sent - n * static_cast<int64_t>(sizeof(cuda::DeviceRule))) / static_cast<int64_t>(sizeof(cuda::DeviceChange));
  cuda::reserve(s.stream, c.rules, sent);
  cuda::reserve(s.stream, c.saved, std::max<int64_t>(changes, 1) * 4);
  cuda::reserve(s.stream, c.choices, made);
  c.received.resize(static_cast<size_t>(made));
  cuda::to_device(s.stream, c.rules.data(), c.sent.data(), c.sent.size());
  const auto* const device_rules = c.rules.as<cuda::DeviceRule>();
  cuda::choose(s.stream, logits.data(), logits.columns, n, device_rules,
               reinterpret_cast<const cuda::DeviceChange*>(device_rules + n), c.saved.as<float>(),
               c.choices.as<cuda::DeviceChoice>());
  cuda::from_device(s.stream, c.received.data(), c.choices.data(), c.received.size());
  const auto* const received = reinterpret_cast<const cuda::DeviceChoice*>(c.received.data());
  for (size_t i = 0; i < rules.size(); ++i)
    choices[i] = {received[i].id, received[i].logit, received[i].top, received[i].total};
}

}  // namespace fidelio
