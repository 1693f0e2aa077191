// This file chooses tokens from logits on the device. Rules are sent there and choices come back; the logits stay.
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

// Returns what goes to the device in one copy: the rules, then their changes.
std::vector<std::byte> gathered(std::span<const ChoiceRule> rules) {
  size_t changes = 0;
  for (const ChoiceRule& rule : rules) changes += rule.changes.size();
  std::vector<std::byte> to(rules.size() * sizeof(cuda::DeviceRule) + changes * sizeof(cuda::DeviceChange));
  auto* const rule_at = reinterpret_cast<cuda::DeviceRule*>(to.data());
  auto* const change_at = reinterpret_cast<cuda::DeviceChange*>(rule_at + rules.size());
  int32_t next = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    rule_at[i] = device_rule(rules[i], next);
    for (const LogitChange& c : rules[i].changes) change_at[next++] = {c.id, c.repeated, c.less, c.more};
  }
  return to;
}

Choice choice_of(const cuda::DeviceChoice& c) { return {c.id, c.logit, c.top, c.total}; }

}  // namespace

Cuda::TokenSet Cuda::make_token_set(std::span<const int32_t> tokens, int64_t v) {
  std::vector<int32_t> places(static_cast<size_t>(v), -1);
  for (size_t i = 0; i < tokens.size(); ++i) places[static_cast<size_t>(tokens[i])] = static_cast<int32_t>(i);
  const size_t bytes = places.size() * sizeof(int32_t);
  TokenSet set{cuda::DeviceBuffer(bytes)};
  cuda::to_device(state_->stream, set.places.data(), places.data(), bytes);
  cuda::wait_for(state_->stream);
  return set;
}

void Cuda::spread(const Matrix& few, const TokenSet& tokens, int64_t rows, Matrix& logits) {
  state_->flush();
  cuda::spread_logits(state_->stream, few.data(), few.columns, tokens.places.as<int32_t>(), rows, logits.columns,
                      logits.data());
}

void Cuda::State::send_and_choose(const Matrix& logits, std::span<const ChoiceRule> rules,
                                  cuda::DeviceChoice* choices) {
  flush();
  const auto n = static_cast<int64_t>(rules.size());
  const std::vector<std::byte> sent = gathered(rules);
  const int64_t changes = (static_cast<int64_t>(sent.size()) - n * static_cast<int64_t>(sizeof(cuda::DeviceRule))) /
                          static_cast<int64_t>(sizeof(cuda::DeviceChange));
  cuda::reserve(stream, choice.saved, std::max<int64_t>(changes, 1) * 4);
  const auto* device_rules =
      static_cast<const cuda::DeviceRule*>(sending.hold(stream, sent.data(), sent.size()));  // each rule is read once
  if (changes > 0) {
    cuda::reserve(stream, choice.rules, static_cast<int64_t>(sent.size()));
    cuda::to_device(stream, choice.rules.data(), device_rules, sent.size());
    device_rules = choice.rules.as<cuda::DeviceRule>();
  }
  cuda::choose(stream, logits.data(), logits.columns, n, device_rules,
               reinterpret_cast<const cuda::DeviceChange*>(device_rules + n), choice.saved.as<float>(), choices);
}

void Cuda::choose(const Matrix& logits, std::span<const ChoiceRule> rules, std::span<Choice> choices) {
  assert(static_cast<int64_t>(rules.size()) <= logits.rows && choices.size() >= rules.size());
  if (rules.empty()) return;
  State& s = *state_;
  s.choice.received.resize(rules.size() * sizeof(cuda::DeviceChoice));
  auto* const received = reinterpret_cast<cuda::DeviceChoice*>(s.choice.received.data());
  s.send_and_choose(logits, rules, received);
  cuda::wait_for(s.stream);
  s.sending.arrived();
  for (size_t i = 0; i < rules.size(); ++i) choices[i] = choice_of(received[i]);
}

void Cuda::choose_later(const Matrix& logits, std::span<const ChoiceRule> rules, int64_t first) {
  assert(static_cast<int64_t>(rules.size()) <= logits.rows &&
         first + static_cast<int64_t>(rules.size()) <= int64_t{kMostLater});
  if (rules.empty()) return;
  State& s = *state_;
  cuda::reserve(s.stream, s.choice.later, static_cast<int64_t>(kMostLater * sizeof(cuda::DeviceChoice)));
  s.send_and_choose(logits, rules, s.choice.later.as<cuda::DeviceChoice>() + first);
}

void Cuda::feed(std::span<const int32_t> from) {
  if (std::all_of(from.begin(), from.end(), [](int32_t place) { return place < 0; })) return;
  State& s = *state_;
  assert(static_cast<int64_t>(from.size()) == s.rows);
  const auto* const places = static_cast<const int32_t*>(s.sending.hold(s.stream, from.data(), from.size_bytes()));
  cuda::feed_tokens(s.stream, s.choice.later.as<cuda::DeviceChoice>(), places, s.rows, s.batch.as<int32_t>());
}

void Cuda::collect(int64_t first, std::span<Choice> choices) {
  if (choices.empty()) return;
  State& s = *state_;
  s.flush();
  s.choice.received.resize(choices.size() * sizeof(cuda::DeviceChoice));
  cuda::from_device(s.stream, s.choice.received.data(), s.choice.later.as<cuda::DeviceChoice>() + first,
                    s.choice.received.size());
  s.sending.arrived();
  const auto* const received = reinterpret_cast<const cuda::DeviceChoice*>(s.choice.received.data());
  for (size_t i = 0; i < choices.size(); ++i) choices[i] = choice_of(received[i]);
}

}  // namespace fidelio
