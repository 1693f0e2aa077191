// This file helps tests: it asks an automaton whether it reads a text, and draws texts that it reads at random.
#pragma once
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "grammar/automaton.h"

namespace fidelio::grammar {

inline bool reads(Automaton& machine, const std::string& text) {
  Automaton::State state = machine.start();
  for (const char c : text) {
    state = machine.step(state, static_cast<uint8_t>(c));
    if (state == Automaton::kDead) return false;
  }
  return machine.accepts(state);
}

// Returns the shortest text that completes the state `from`. If `calm`, it opens nothing where there is another way;
// otherwise it is the shortest of all. It is empty where thousands of states do not lead to an end.
inline std::optional<std::string> shortest_end(Automaton& machine, Automaton::State from, bool calm) {
  struct Step {
    size_t before;
    char byte;
    Automaton::State state;
  };
  std::vector<Step> steps = {{0, 0, from}};
  std::map<Automaton::State, bool> met = {{from, true}};
  for (size_t at = 0; at < steps.size() && steps.size() < 20'000; ++at) {
    if (machine.accepts(steps[at].state)) {
      std::string text;
      for (size_t i = at; i > 0; i = steps[i].before) text.insert(text.begin(), steps[i].byte);
      return text;
    }
    const auto leads = [&](int byte) {
      return machine.step(steps[at].state, static_cast<uint8_t>(byte)) != Automaton::kDead;
    };
    const auto opens = [](int byte) { return byte == '[' || byte == '{' || byte == ' ' || byte == '\n'; };
    bool other = false;
    for (int byte = 0; byte < 256; ++byte) other = other || (!opens(byte) && leads(byte));
    for (int byte = 0; byte < 256; ++byte) {
      if (calm && other && opens(byte)) continue;
      const auto next = machine.step(steps[at].state, static_cast<uint8_t>(byte));
      if (next != Automaton::kDead && met.try_emplace(next, true).second)
        steps.push_back({at, static_cast<char>(byte), next});
    }
  }
  return std::nullopt;
}

// Returns a text of random bytes, among which closing ones are preferred. A text that has grown long is ended by the
// shortest way. It is empty where it cannot be ended.
inline std::optional<std::string> drawn_text(Automaton& machine, std::mt19937& random, size_t long_text = 120) {
  std::string text;
  Automaton::State state = machine.start();
  while (text.size() < long_text) {
    std::string all, closing;
    for (int byte = 0; byte < 256; ++byte) {
      if (machine.step(state, static_cast<uint8_t>(byte)) == Automaton::kDead) continue;
      all += static_cast<char>(byte);
      if (byte == '"' || byte == '}' || byte == ']') closing += static_cast<char>(byte);
    }
    if (machine.accepts(state) && (all.empty() || random() % 3 == 0)) return text;
    if (all.empty()) return std::nullopt;
    const std::string& from = !closing.empty() && random() % 4 == 0 ? closing : all;
    text += from[random() % from.size()];
    state = machine.step(state, static_cast<uint8_t>(text.back()));
  }
  auto end = shortest_end(machine, state, true);
  if (!end) end = shortest_end(machine, state, false);
  return end ? std::optional(text + *end) : std::nullopt;
}

}  // namespace fidelio::grammar
