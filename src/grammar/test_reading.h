// A machine asked whether it reads a text, for tests.
#pragma once
#include <string>

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

}  // namespace fidelio::grammar
